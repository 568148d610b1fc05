// `pride bench`: what this machine and this network can do, as rows with rivals beside them.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/exchange.h"
#include "bench/network.h"
#include "bench/patterns.h"
#include "commands.h"
#include "integer_check.h"
#include "number_check.h"
#include "plan/units.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "pride/registry.h"
#include "settings_of.h"
#include "text/table.h"
#include "train/settings/method_options.h"
#include "train/settings/nodes.h"
#include "world.h"
#if PRIDE_HAVE_TORCH
#include "pride/train/trainer.h"
#include "train/flags.h"
#include "train/process.h"
#include "train/step_times.h"
#include "train_names.h"
#endif

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostCoords = std::int64_t{1} << 33;
constexpr const char* kMethodsHelp =
    "Separated by commas, each perhaps with options of its own, as lion:dense=bf16";

struct Arguments {
  Workers workers;
  Settings settings;  // what all ranks must have alike
  double seconds = 1;
  bool json = false;
  std::vector<std::string> methods = {"lion",       "lion:dense=native", "lion:dense=bf16",
                                      "dlion-vote", "dlion-avg",         "lion-cub"};
  std::vector<std::string> method_options;
  std::vector<std::int64_t> sizes = {10'000, 100'000, 1'000'000, 10'000'000};
  std::int64_t bucket_coords = std::int64_t{1} << 20;
  int exchange_threads = 4;
  std::string hierarchical;
  std::vector<std::int64_t> message_sizes = {8, 1 << 10, 1 << 16, 1 << 20, 1 << 24};
  int reps = 5;
};

Json network_json(const Communicator& comm, const NetworkFacts& facts) {
  return {{"row", "network"},
          {"workers", comm.size()},
          {"transport", comm.transport()},
          {"latency_s", facts.latency_s},
          {"message_s", facts.message_s},
          {"goodput_bytes_per_s", facts.goodput},
          {"cpu_s_per_byte", facts.cpu_s_per_byte},
          {"pair_goodput_bytes_per_s", facts.pair_goodput}};
}

void print_network(const Communicator& comm, const NetworkFacts& facts) {
  std::cout << comm.size() << " ranks (" << comm.transport() << "): ";
  if (comm.size() == 1) {
    std::cout << "one rank has no network\n";
    return;
  }
  std::cout << "latency " << time_text(facts.latency_s) << " one way, goodput "
            << bandwidth_text(facts.goodput) << " a rank when all send to all, "
            << bandwidth_text(facts.pair_goodput) << " from the first to the last\n";
}

Json pattern_json(const Communicator& comm, const PatternCell& cell) {
  return {{"row", "pattern"},
          {"name", cell.name},
          {"bytes", cell.bytes},
          {"workers", comm.size()},
          {"transport", comm.transport()},
          {"measurements", cell.times.n},
          {"min_s", cell.times.min_s},
          {"median_s", cell.times.median_s},
          {"p99_s", cell.times.p99_s},
          {"algorithm_bytes_per_s", cell.algorithm_bandwidth()},
          {"bus_bytes_per_s", cell.bus_bandwidth()},
          {"wrong_ranks", cell.wrong_ranks}};
}

void print_pattern(const PatternCell& cell) {
  std::printf("%-12s %14s %12s %12s %12s %14s %14s %6d\n", cell.name.c_str(),
              grouped(static_cast<double>(cell.bytes)).c_str(), time_text(cell.times.min_s).c_str(),
              time_text(cell.times.median_s).c_str(), time_text(cell.times.p99_s).c_str(),
              bandwidth_text(cell.algorithm_bandwidth()).c_str(),
              bandwidth_text(cell.bus_bandwidth()).c_str(), cell.wrong_ranks);
  std::fflush(stdout);
}

void print_pattern_head() {
  std::printf("%-12s %14s %12s %12s %12s %14s %14s %6s\n", "pattern", "bytes", "min", "median",
              "p99", "algorithm", "bus", "wrong");
}

void run_network(const Arguments& args) {
  run_ranks(args.workers, [&](Communicator& comm, bool) {
    const bool root = comm.rank() == 0;
    check_same_settings(comm, args.settings);
    const NetworkFacts facts = measure_network(comm, args.seconds);
    if (root && args.json) std::cout << network_json(comm, facts) << std::endl;
    if (root && !args.json) print_network(comm, facts);
    if (comm.size() == 1) return;
    if (root && !args.json) print_pattern_head();
    const PatternBench how{.sizes = {args.message_sizes.begin(), args.message_sizes.end()},
                           .seconds = args.seconds / 4,
                           .least = args.reps};
    bench_patterns(comm, how, [&](const PatternCell& cell) {
      if (!root) return;
      if (args.json) {
        std::cout << pattern_json(comm, cell) << std::endl;
      } else {
        print_pattern(cell);
      }
    });
    if (root && !args.json) {
      std::cout << "algorithm: bytes over the median. bus: what a rank sends of them, over it (of "
                   "an all-reduce what a ring sends).\nwrong: ranks that have not received what "
                   "they must.\n";
    }
  });
}

Json cell_json(const Communicator& comm, const ExchangeCell& cell) {
  const bool alone = comm.size() == 1;
  return {
      {"row", "exchange"},
      {"name", cell.name},
      {"coords", cell.coords},
      {"workers", comm.size()},
      {"transport", comm.transport()},
      {"measurements", cell.times.n},
      {"min_s", cell.times.min_s},
      {"median_s", cell.times.median_s},
      {"p99_s", cell.times.p99_s},
      {"bytes_sent", cell.bytes},
      {"bytes_counted", cell.counted},
      {"route", cell.route.empty() ? Json(nullptr) : Json(cell.route)},
      {"bytes_off_node", cell.bytes_off_node ? Json(*cell.bytes_off_node) : Json(nullptr)},
      {"algorithm_bytes_per_s", cell.algorithm_bandwidth()},
      {"bus_bytes_per_s", cell.bus_bandwidth()},
      {"limit_s", alone ? Json(nullptr) : Json(cell.limit_s)},
      {"times_limit", cell.limit_s > 0 ? Json(cell.times.median_s / cell.limit_s) : Json(nullptr)},
      {"wrong_ranks", cell.wrong_ranks},
      {"checked_against", cell.checked_against}};
}

void print_cell(const ExchangeCell& cell) {
  std::printf("%-24s %12s %-12s %10.3f %10.3f %10.3f %14s %12s %12s", cell.name.c_str(),
              grouped(static_cast<double>(cell.coords)).c_str(),
              cell.route.empty() ? "-" : cell.route.c_str(), cell.times.min_s * 1e3,
              cell.times.median_s * 1e3, cell.times.p99_s * 1e3,
              ((cell.counted ? "" : "~") + grouped(cell.bytes)).c_str(),
              bandwidth_text(cell.algorithm_bandwidth()).c_str(),
              bandwidth_text(cell.bus_bandwidth()).c_str());
  if (cell.limit_s > 0) {
    std::printf(" %8.2f", cell.times.median_s / cell.limit_s);
  } else {
    std::printf(" %8s", "-");
  }
  std::printf(" %6d", cell.wrong_ranks);
  if (cell.bytes_off_node) {
    std::printf("  %s bytes off a node", grouped(*cell.bytes_off_node).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

void print_head() {
  std::printf("%-24s %12s %-12s %10s %10s %10s %14s %12s %12s %8s %6s\n", "exchange", "coordinates",
              "route", "min ms", "median ms", "p99 ms", "bytes sent", "algorithm", "bus", "x limit",
              "wrong");
}

// Methods choose the route of a bucket by what was measured, unless the user says otherwise.
void add_round_bytes(const Communicator& comm, const NetworkFacts& facts,
                     std::vector<std::string>& options) {
  if (comm.size() == 1 || parse_method_options(options).contains("round_bytes")) return;
  const NetworkModel network{facts.latency_s, facts.message_s, facts.goodput, facts.cpu_s_per_byte};
  options.push_back(concat("round_bytes=", round_bytes(network, comm.size())));
}

void run_exchange(const Arguments& args) {
  run_ranks(args.workers, [&](Communicator& comm, bool threads_may_talk) {
    const bool root = comm.rank() == 0;
    check_same_settings(comm, args.settings);
    ExchangeBench how{.methods = args.methods,
                      .method_options = args.method_options,
                      .sizes = {args.sizes.begin(), args.sizes.end()},
                      .bucket_coords = static_cast<std::size_t>(args.bucket_coords),
                      .nodes = nodes_of(comm, args.hierarchical),
                      .exchange_threads = threads_may_talk ? args.exchange_threads : 0,
                      .seconds = args.seconds,
                      .least = args.reps};
    check_options(how, comm.size());  // before anything takes time
    const NetworkFacts network = measure_network(comm, args.seconds);
    add_round_bytes(comm, network, how.method_options);
    if (root && how.exchange_threads != args.exchange_threads) {
      std::cerr << "note: this MPI does not grant MPI_THREAD_MULTIPLE: no exchange threads\n";
    }
    if (root && args.json) std::cout << network_json(comm, network) << std::endl;
    if (root && !args.json) {
      print_network(comm, network);
      print_head();
    }
    bench_exchange(comm, how, network, [&](const ExchangeCell& cell) {
      if (!root) return;
      if (args.json) {
        std::cout << cell_json(comm, cell) << std::endl;
      } else {
        print_cell(cell);
      }
    });
    if (root && !args.json) {
      std::cout << "x limit: median over the bytes at the better goodput above. wrong: ranks whose "
                   "result "
                   "is not what it must be.\n~: an estimate: what the transport's own sum sends is "
                   "not known.\n";
    }
  });
}

#if PRIDE_HAVE_TORCH
Json step_json(const Communicator& comm, const StepRow& row, double backward_s) {
  return {{"row", "step"},
          {"name", row.name},
          {"overlap", row.overlap},
          {"workers", comm.size()},
          {"transport", comm.transport()},
          {"measurements", row.times.n},
          {"min_s", row.times.min_s},
          {"median_s", row.times.median_s},
          {"p99_s", row.times.p99_s},
          {"bucket_coords", row.bucket_coords},
          {"encode_s", row.encode_s},
          {"exchange_s", row.exchange_s},
          {"apply_s", row.apply_s},
          {"times_backward", row.times.median_s / backward_s},
          {"samples_per_s", row.samples_per_s},
          {"bytes_sent", row.bytes},
          {"wrong_ranks", row.wrong_ranks ? Json(*row.wrong_ranks) : Json(nullptr)}};
}

void print_step(const StepRow& row, double backward_s) {
  std::printf("%-18s %8s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f %12.2f %12.1f %14s %6s\n",
              row.name.c_str(), row.overlap ? "yes" : "no", row.times.min_s * 1e3,
              row.times.median_s * 1e3, row.times.p99_s * 1e3, row.encode_s * 1e3,
              row.exchange_s * 1e3, row.apply_s * 1e3, row.times.median_s / backward_s,
              row.samples_per_s, grouped(row.bytes).c_str(),
              row.wrong_ranks ? concat(*row.wrong_ranks).c_str() : "-");
}

void run_step(const Arguments& args, const TrainOptions& options) {
  pin_threads();
  run_ranks(args.workers, [&](Communicator& comm, bool threads_may_talk) {
    check_same_settings(comm, args.settings);
    const auto rows = bench_steps(comm, {.options = options,
                                         .methods = args.methods,
                                         .threads_may_talk = threads_may_talk,
                                         .seconds = args.seconds,
                                         .least = args.reps});
    if (comm.rank() != 0) return;
    const double backward_s = rows.front().times.median_s;
    if (!args.json) {
      std::printf("%d ranks (%s)\n%-18s %8s %10s %10s %10s %10s %10s %10s %12s %12s %14s %6s\n",
                  comm.size(), std::string(comm.transport()).c_str(), "step", "overlap", "min ms",
                  "median ms", "p99 ms", "encode ms", "wait ms", "apply ms", "x backward",
                  "samples/s", "bytes sent", "wrong");
    }
    for (const StepRow& row : rows) {
      if (args.json) {
        std::cout << step_json(comm, row, backward_s) << std::endl;
      } else {
        print_step(row, backward_s);
      }
    }
  });
}
#endif

CLI::App* add_common(CLI::App& bench, const std::string& name, const std::string& what,
                     Arguments& args) {
  CLI::App* command = bench.add_subcommand(name, what);
  command
      ->add_option(
          "--workers", args.workers.total,
          "Threads, each a rank. Default: 4. In a job (mpirun, torchrun) every process is a "
          "rank and the flag may be left out")
      ->check(integer_check<int>(1, 1024));
  add_transport_flag(*command);
  command->add_option("--threads-per-process", args.workers.per_process, kThreadsPerProcessHelp)
      ->check(integer_check<int>(1, 1024));
  add_timeout_flag(*command, args.workers);
  command->add_option("--seconds", args.seconds, "Of each measurement, at least")
      ->capture_default_str()
      ->check(number_check())
      ->check(CLI::Range(0.001, 3600.0));
  command->add_flag("--json", args.json, "JSON lines, one for each row");
  return command;
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine and this network");
  bench->require_subcommand(1);
  add_bench_kernels_command(*bench);
  add_bench_loader_command(*bench);
  const auto args = std::make_shared<Arguments>();
  CLI::App* network =
      add_common(*bench, "network",
                 "Latency and goodput between the ranks, and patterns of messages by size", *args);
  network
      ->add_option("--sizes", args->message_sizes,
                   "Bytes of each rank's data in a pattern, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(integer_check<std::int64_t>(1, std::int64_t{1} << 32));
  network->add_option("--reps", args->reps, "Measurements of each row, at least")
      ->capture_default_str()
      ->check(integer_check<int>(1, 1'000'000));
  network->callback([args, network] {
    args->settings = settings_of(*network);
    run_network(*args);
  });
  CLI::App* exchange = add_common(
      *bench, "exchange", "Exchanges of the methods, and the transport's own all-reduce", *args);
  exchange->add_option("--methods", args->methods, kMethodsHelp)
      ->delimiter(',')
      ->capture_default_str();
  exchange
      ->add_option(
          "--method-opt", args->method_options,
          "key=value, for each of the methods that has the key and does not set it itself; "
          "may be repeated")
      ->allow_extra_args(false);
  exchange->add_option("--sizes", args->sizes, "Coordinates, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(integer_check<std::int64_t>(1, kMostCoords));
  exchange->add_option("--bucket-coords", args->bucket_coords, "Target size of a bucket")
      ->capture_default_str()
      ->check(integer_check<std::int64_t>(1, kMostCoords));
  exchange
      ->add_option("--exchange-threads", args->exchange_threads,
                   "Buckets on their way at a time; 0: one after the other, on the caller's thread")
      ->capture_default_str()
      ->check(integer_check<int>(0, 16));
  exchange
      ->add_option("--hierarchical", args->hierarchical,
                   std::string(kHierarchicalHelp) + ". Other methods are measured in one level")
      ->type_name("L|auto")
      ->check(CLI::Validator(wrong_hierarchical, ""));
  exchange->add_option("--reps", args->reps, "Measurements of each row, at least")
      ->capture_default_str()
      ->check(integer_check<int>(1, 1'000'000));
  exchange->callback([args, exchange] {
    args->settings = settings_of(*exchange);
    run_exchange(*args);
  });
#if PRIDE_HAVE_TORCH
  CLI::App* step = add_common(
      *bench, "step", "Training steps of a model by each method, with and without overlap", *args);
  const auto options = std::make_shared<TrainOptions>();
  add_workload_flags(*step, *options);
  step->add_option("--methods", args->methods, kMethodsHelp)->delimiter(',')->capture_default_str();
  step->add_option("--exchange-threads", options->exchange_threads,
                   "With overlap: buckets on their way at a time")
      ->capture_default_str()
      ->check(integer_check<int>(1, 16));
  step->add_option("--reps", args->reps, "Rounds, at least")
      ->capture_default_str()
      ->check(integer_check<int>(1, 1'000'000));
  step->callback([args, options, step] {
    args->settings = settings_of(*step);
    run_step(*args, *options);
  });
#endif
}

}  // namespace pride::app
