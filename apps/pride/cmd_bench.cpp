// `pride bench`: measurements of this machine and network, with reference rows.
// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>

#include "bench/fields.h"
#include "commands.h"
#include "device/cuda_device.h"
#include "houses.h"
#include "pride/cpu.h"
#include "pride/device.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "program/bench/kinds.h"
#include "program/program.h"

namespace pride::app {
namespace {

constexpr double kMostCoords = 0x1p33;

void add_sizes(CLI::App& kind, std::vector<std::size_t>& sizes, double most) {
  add_value(kind, "--sizes", sizes, "Coordinates, separated by commas", {1, most});
}

void add_device(CLI::App& kind, std::string& device) {
  kind.add_option("--device", device,
                  "cpu, or cuda: on this machine's first GPU (ranks take them in turn), beside "
                  "copies within its memory")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

const std::vector<std::string> kMethods = {"lion",       "lion:dense=native", "lion:dense=bf16",
                                           "dlion-vote", "dlion-avg",         "lion-cub"};

struct MethodArguments : BenchArguments {
  MethodBench how = {.methods = kMethods, .sizes = {10'000, 100'000, 1'000'000, 10'000'000}};
  std::string hierarchical = {};  // of exchange
  std::string device = "cpu";     // of optimizer
};

// Methods choose the route of a bucket by the measured network, unless the user sets it.
void add_bandwidth_delay_bytes(const Communicator& comm, const NetworkFacts& facts,
                               std::vector<std::string>& options) {
  if (comm.size() == 1 || parse_method_options(options).contains("bandwidth_delay_bytes")) return;
  const NetworkModel network{facts.latency_s, facts.message_s, facts.goodput, facts.cpu_s_per_byte};
  options.push_back(concat("bandwidth_delay_bytes=", bandwidth_delay_bytes(network, comm.size())));
}

// The requested number, if several threads of a rank may communicate at a time.
int granted_threads(const Communicator& comm, int wanted, bool threads_may_talk) {
  if (threads_may_talk || wanted == 0) return wanted;
  if (comm.rank() == 0) {
    std::cerr << "note: this MPI does not grant MPI_THREAD_MULTIPLE: no exchange threads\n";
  }
  return 0;
}

void run_exchange(const MethodArguments& args) {
  on_ranks(args, [&](Communicator& comm, RowPrinter& print, bool threads_may_talk) {
    MethodBench how = args.how;
    how.nodes = nodes_of(comm, args.hierarchical);
    how.exchange_threads = granted_threads(comm, how.exchange_threads, threads_may_talk);
    check_options(how, comm.size());  // before anything takes time
    const NetworkFacts network = network_row(comm, how.seconds, print);
    add_bandwidth_delay_bytes(comm, network, how.method_options);
    bench_exchange(comm, how, network,
                   [&](const ExchangeCell& cell) { print.row(fields_of(comm, cell)); });
    print.note(
        "x limit: the median divided by the time of the bytes at the better goodput above. wrong: "
        "ranks with a wrong result.\n~: an estimate, because the bytes of the transport's own sum "
        "are not known.");
  });
}

// Ranks of a machine take its GPUs in turn. Methods without GPU kernels are left out, with a note.
void go_to_gpu(Communicator& comm, MethodBench& how, RowPrinter& print) {
  how.device = gpu_of_rank(comm);
  print.note(how.device->name());
  std::erase_if(how.methods, [&](const std::string& method) {
    const MethodChoice choice = parse_method(method);
    const std::string why = why_host_only(choice.name, checked_options(choice));
    if (!why.empty()) print.note(concat(method, " is left out: ", why));
    return !why.empty();
  });
}

void run_optimizer(const MethodArguments& args) {
  on_ranks(args, [&](Communicator& comm, RowPrinter& print, bool threads_may_talk) {
    MethodBench how = args.how;
    how.exchange_threads = granted_threads(comm, how.exchange_threads, threads_may_talk);
    if (args.device == "cuda") go_to_gpu(comm, how, print);
    for (const std::size_t coords : how.sizes) {
      const auto rows = bench_optimizer(comm, how, coords);
      for (const StepRow& row : rows) print.row(optimizer_fields(comm, row, rows.front(), coords));
    }
    print.note(
        how.device
            ? "x copy: divided by a copy within the GPU of the bytes that a step of Lion reads "
              "and writes. encode, apply: until the work is queued."
            : "x alone: divided by a step of Lion without exchange. wait: for the exchange.");
  });
}

void add_methods_flag(CLI::App& kind, std::vector<std::string>& methods) {
  add_value(kind, "--methods", methods, kMethodsHelp)->delimiter(',');
}

void add_exchange_flags(CLI::App& kind, MethodBench& how, const char* threads) {
  add_methods_flag(kind, how.methods);
  add_sizes(kind, how.sizes, kMostCoords);
  add_value(kind, "--bucket-coords", how.bucket_coords, "Target size of a bucket",
            {1, kMostCoords});
  add_value(kind, "--exchange-threads", how.exchange_threads, threads, {0, 16});
}

void add_exchange(CLI::App& bench) {
  const auto args = std::make_shared<MethodArguments>();
  CLI::App* kind =
      add_ranked(bench, "exchange", "Exchanges of the methods, and the transport's own all-reduce",
                 args, run_exchange);
  add_exchange_flags(*kind, args->how,
                     "Buckets in flight; 0: one after the other, on the caller's thread");
  kind->add_option(
          "--method-opt", args->how.method_options,
          "key=value for each method that has this key and does not set it itself; may be repeated")
      ->allow_extra_args(false);
  kind->add_option(
          "--hierarchical", args->hierarchical,
          std::string(kHierarchicalHelp) + ". Other methods are measured on their own route")
      ->type_name("L|auto")
      ->check(CLI::Validator(wrong_hierarchical, ""));
}

void add_optimizer(CLI::App& bench) {
  const auto args = std::make_shared<MethodArguments>();
  args->how.sizes = {10'000'000};
  CLI::App* kind =
      add_ranked(bench, "optimizer",
                 "Optimizer steps of each method and of dense methods, gradients ready; no model",
                 args, run_optimizer, "Minimum repetitions");
  add_exchange_flags(*kind, args->how, "With overlap: buckets in flight; 0: no row with overlap");
  add_device(*kind, args->device);
  add_value(*kind, "--tensors", args->how.tensors, "Tensors of equal size, each at its own address",
            {1, 1'000'000});
}

struct KernelArguments : BenchArguments {
  KernelBench how = {.sizes = {10'000, 1'000'000, 10'000'000}};
  std::vector<std::size_t> rows = {4, 16};
  std::string filter = ".*";
  bool small_pages = false;
  std::string device = "cpu";
};

constexpr std::size_t kLargestCopy = std::size_t{4} << 30;  // bytes

void run_gpu_kernels(const KernelArguments& args) {
  PRIDE_CHECK(args.how.isas.empty() && !args.small_pages,
              "--isa and --small-pages are of --device cpu");
  const auto device = cuda::open_device(0, false);  // wrong kernels have rows, too
  RowPrinter print(args.json);
  const std::size_t bytes = std::min(16 * std::ranges::max(args.how.sizes), kLargestCopy);
  const CopyRates rates = measure_copies(*device, bytes, args.how.seconds, args.how.least);
  print.row(fields_of(rates, device->name()));
  print.note(rates_text(rates, device->name()));
  bench_gpu_kernels(*device, args.how, args.filter, rates.memory,
                    [&](const GpuCell& cell) { print.row(fields_of(cell)); });
  print.note(
      "GB/s: bytes read and written, at the median. of copy: the time of a copy of as many bytes "
      "over it; small tensors lie in the GPU's cache, or the launch takes longest.\n"
      "wrong: arrays without the bits that the host makes of them.");
}

void run_kernels(const KernelArguments& args) {
  if (args.device == "cuda") return run_gpu_kernels(args);
  if (args.small_pages) ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  RowPrinter print(args.json);
  KernelBench how = args.how;
  if (how.isas.empty()) how.isas = {active_isa()};
  if (how.isas == std::vector<std::string>{"all"}) how.isas = available_isas();
  bench_kernels(matching_rows(kernel_rows(args.rows), args.filter), how,
                [&](const KernelCell& cell) { print.row(fields_of(cell)); });
  print.note(
      "GB/s: bytes read and written, at the median. x memcpy: that divided by memcpy's, which "
      "alternates with the kernel and moves as many bytes.\nwrong: values that differ in any bit "
      "from plain code (SCALAR); -: plain code itself. /4: 4 rows; /p4: 4 bits per level.");
}

void add_kernels(CLI::App& bench) {
  const auto args = std::make_shared<KernelArguments>();
  CLI::App* kind =
      add_kind(bench, "kernels",
               "Each kernel of a step on one core or on a GPU, checked, compared with copies; no "
               "other ranks",
               args, run_kernels);
  add_device(*kind, args->device);
  add_sizes(*kind, args->how.sizes, 0x1p30);
  add_times(*kind, args->how, "Minimum seconds per kernel; memcpy runs as long",
            "Minimum measurements per kernel");
  add_value(*kind, "--filter", args->filter,
            "Regular expression that matches a part of the kernels' names");
  add_value(*kind, "--isa", args->how.isas,
            "Instruction sets as in `pride info`, separated by commas, or all. Default: the one "
            "that training uses")
      ->delimiter(',');
  add_value(*kind, "--rows", args->rows,
            "Numbers of ranks for votes, counts and means; one row each", {1, 1024});
  kind->add_flag("--small-pages", args->small_pages,
                 "Arrays on pages of 4 KiB. Default: on huge pages, if the system grants them");
}

}  // namespace

void add_bench(CLI::App& command) {
  command.require_subcommand(1);
  add_kernels(command);
  add_network_bench(command);
  add_exchange(command);
  add_optimizer(command);
  add_benches_of_lab(command);
}

}  // namespace pride::app
