// SPDX-License-Identifier: Apache-2.0
#include "program/bench/kinds.h"

namespace pride::inline program {
namespace {

struct NetworkArguments : BenchArguments {
  PatternBench how = {.sizes = {8, 1 << 10, 1 << 16, 1 << 20, 1 << 24}, .seconds = 1};
};

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

}  // namespace

void on_ranks(const BenchArguments& args, const RankedBody& body) {
  run_ranks(args.workers, [&](Communicator& comm, bool threads_may_talk) {
    check_same_settings(comm, args.settings);
    RowPrinter print(args.json, comm.rank() != 0);
    body(comm, print, threads_may_talk);
  });
}

NetworkFacts network_row(Communicator& comm, double seconds, RowPrinter& print) {
  const NetworkFacts facts = measure_network(comm, seconds);
  print.row(fields_of(comm, facts));
  print.note(network_text(comm, facts));
  return facts;
}

void add_network_bench(CLI::App& bench) {
  const auto args = std::make_shared<NetworkArguments>();
  CLI::App* kind = add_ranked(bench, "network",
                              "Latency and goodput between the ranks, and message patterns by size",
                              args, run_network);
  add_value(*kind, "--sizes", args->how.sizes,
            "Bytes of each rank's data in a pattern, such as 8 or 64kB, separated by commas")
      ->transform(number_reader<std::size_t>({1, 0x1p32}, true));
}

}  // namespace pride::inline program
