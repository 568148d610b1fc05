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
#include "flag_values.h"
#include "pride/cpu.h"
#include "pride/device.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "train/clock.h"
#include "train/settings/settings.h"
#include "train/vision/image_folder.h"
#include "train/vision/jpeg.h"
#include "train/vision/prefetcher.h"
#include "train/vision/view.h"
#include "world.h"
#if PRIDE_HAVE_TORCH
#include "pride/train/trainer.h"
#include "train/flags.h"
#include "train/process.h"
#include "train/step_times.h"
#endif

namespace pride::app {
namespace {

constexpr double kMostCoords = 0x1p33;

// The flags of all kinds of benchmarks.
struct BenchArguments {
  Workers workers = {};
  Settings settings = {};  // must be equal on all ranks
  bool json = false;
};

using RankedBody = std::function<void(Communicator&, RowPrinter&, bool threads_may_talk)>;

void on_ranks(const BenchArguments& args, const RankedBody& body) {
  run_ranks(args.workers, [&](Communicator& comm, bool threads_may_talk) {
    check_same_settings(comm, args.settings);
    RowPrinter print(args.json, comm.rank() != 0);
    body(comm, print, threads_may_talk);
  });
}

// Adds a kind of benchmark, which `run` measures.
template <typename Args>
CLI::App* add_kind(CLI::App& bench, const char* name, const char* what,
                   const std::shared_ptr<Args>& args, void (*run)(const Args&)) {
  CLI::App* kind = bench.add_subcommand(name, what);
  kind->add_flag("--json", args->json, "JSON lines, one per row");
  kind->callback([=] {
    args->settings = settings_of(*kind);
    run(*args);
  });
  return kind;
}

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

template <typename How>
void add_times(CLI::App& kind, How& how, const char* seconds, const char* reps) {
  add_value(kind, "--seconds", how.seconds, seconds, {0.001, 3600});
  add_value(kind, "--reps", how.least, reps, {1, 1e6});
}

// Adds a kind of benchmark that runs on ranks.
template <typename Args>
CLI::App* add_ranked(CLI::App& bench, const char* name, const char* what,
                     const std::shared_ptr<Args>& args, void (*run)(const Args&),
                     const char* reps = "Minimum measurements per row") {
  CLI::App* kind = add_kind(bench, name, what, args, run);
  add_rank_flags(*kind, args->workers);
  add_times(*kind, args->how, "Minimum seconds per measurement", reps);
  return kind;
}

struct NetworkArguments : BenchArguments {
  PatternBench how = {.sizes = {8, 1 << 10, 1 << 16, 1 << 20, 1 << 24}, .seconds = 1};
};

NetworkFacts network_row(Communicator& comm, double seconds, RowPrinter& print) {
  const NetworkFacts facts = measure_network(comm, seconds);
  print.row(fields_of(comm, facts));
  print.note(network_text(comm, facts));
  return facts;
}

void run_network(const NetworkArguments& args) {
  on_ranks(args, [&](Communicator& comm, RowPrinter& print, bool) {
    network_row(comm, args.how.seconds, print);
    PatternBench how = args.how;
    how.seconds /= 4;
    bench_patterns(comm, how, [&](const PatternCell& cell) { print.row(fields_of(comm, cell)); });
    if (comm.size() == 1) return;
    print.note(
        "algorithm: bytes divided by the median time. bus: the bytes a rank sends divided by it "
        "(for an all-reduce those of a ring).\nwrong: ranks that received wrong bytes.");
  });
}

void add_network(CLI::App& bench) {
  const auto args = std::make_shared<NetworkArguments>();
  CLI::App* kind = add_ranked(bench, "network",
                              "Latency and goodput between the ranks, and message patterns by size",
                              args, run_network);
  add_value(*kind, "--sizes", args->how.sizes,
            "Bytes of each rank's data in a pattern, such as 8 or 64kB, separated by commas")
      ->transform(number_reader<std::size_t>({1, 0x1p32}, true));
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

void add_methods(CLI::App& kind, std::vector<std::string>& methods) {
  add_value(kind, "--methods", methods, kMethodsHelp)->delimiter(',');
}

void add_exchange_flags(CLI::App& kind, MethodBench& how, const char* threads) {
  add_methods(kind, how.methods);
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

#if PRIDE_HAVE_TORCH
struct StepArguments : BenchArguments {
  StepBench how = {.methods = kMethods, .seconds = 1};
};

void run_step(const StepArguments& args) {
  pin_threads();
  on_ranks(args, [&](Communicator& comm, RowPrinter& print, bool threads_may_talk) {
    StepBench how = args.how;
    how.threads_may_talk = threads_may_talk;
    const auto rows = bench_steps(comm, how);
    print.note(concat(comm.size(), " ranks (", comm.transport(), ")"));
    for (const StepRow& row : rows) print.row(step_fields(comm, row, rows.front()));
  });
}

void add_step(CLI::App& bench) {
  const auto args = std::make_shared<StepArguments>();
  CLI::App* kind = add_ranked(
      bench, "step", "Training steps of a model with each method, with and without overlap", args,
      run_step, "Minimum repetitions");
  add_workload_flags(*kind, args->how.options);
  add_methods(*kind, args->how.methods);
  add_value(*kind, "--exchange-threads", args->how.options.exchange_threads,
            "With overlap: buckets in flight", {1, 16});
}
#endif

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

struct LoaderArguments : BenchArguments {
  std::string data = {};
  std::size_t images = 1000;
  int image_size = 224;
  std::vector<int> threads = {1};
  bool check = false;
};

void run_loader(const LoaderArguments& args) {
  const ImageFolder folder = scan_images(find_image_folder(args.data));
  if (!args.check) {
    RowPrinter print(args.json);
    for (const int threads : args.threads) {
      print.row(fields_of(bench_loader(folder, args.images, args.image_size, threads)));
    }
    return;
  }
  const std::vector<std::string> errors = check_images(folder, args.threads.back());
  for (const std::string& error : errors) std::cout << error << "\n";
  const std::size_t n = folder.train.size() + folder.val.size();
  if (!errors.empty()) {
    throw DataError(concat(errors.size(), " of ", n, " images cannot be read"));
  }
  std::cout << "all " << n << " images can be read" << std::endl;
}

void add_loader(CLI::App& bench) {
  const auto args = std::make_shared<LoaderArguments>();
  CLI::App* kind = add_kind(
      bench, "loader", "Images of the task imagenet, decoded and cropped as in training; no ranks",
      args, run_loader);
  kind->add_option("--data", args->data,
                   "Folder with train/CLASS/*.jpg and val/CLASS/*.jpg; default: $PRIDE_DATA");
  add_value(*kind, "--images", args->images,
            "Number of images, spread evenly over the training set", {1});
  add_value(*kind, "--image-size", args->image_size, "Side of the crops in pixels", {1, 4096});
  add_value(*kind, "--threads", args->threads, "Numbers of threads, separated by commas", {1, 256});
  kind->add_flag("--check", args->check,
                 "Instead decode every image of both splits and list those that cannot be decoded");
}

}  // namespace

void add_bench(CLI::App& command) {
  command.require_subcommand(1);
  add_kernels(command);
  add_network(command);
  add_exchange(command);
  add_optimizer(command);
#if PRIDE_HAVE_TORCH
  add_step(command);
#endif
  add_loader(command);
}

}  // namespace pride::app
