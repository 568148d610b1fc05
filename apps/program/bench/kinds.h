// Kinds of `pride bench`: their common flags, and the benchmark of the network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "program/bench/fields.h"
#include "program/flag_values.h"
#include "program/settings.h"
#include "program/world.h"

namespace pride::inline program {

// The flags of all kinds of benchmarks.
struct BenchArguments {
  Workers workers = {};
  Settings settings = {};  // must be equal on all ranks
  bool json = false;
};

using RankedBody = std::function<void(Communicator&, RowPrinter&, bool threads_may_talk)>;

// Runs `body` on the ranks, which must have the same settings; rank 0 prints.
void on_ranks(const BenchArguments& args, const RankedBody& body);

// Prints the network between the ranks.
NetworkFacts network_row(Communicator& comm, double seconds, RowPrinter& print);

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

// `bench network`: latency and goodput between the ranks, and message patterns by size.
void add_network_bench(CLI::App& bench);

}  // namespace pride::inline program
