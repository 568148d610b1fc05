// Runs of methods with local steps whose fragments are exchanged in turn, traced step by step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rules/orthogonalise.h"
#include "support/training.h"

namespace pride::streaming {

using Options = std::map<std::string, std::string>;
using Hashes = std::vector<std::uint64_t>;
using testing::kTensors;
using testing::unused;

// What each rank has after each step.
struct Trace {
  std::vector<std::vector<float>> local, common;  // by step, flat
  std::vector<StepReport> reports;
  std::uint64_t hash = 0;  // of the last common parameters
};

struct Stream {
  int world = 3, steps = 11;
  OptimizerOptions options = {};
  bool look = true;   // at the common parameters after every step
  bool pull = false;  // gradients depend on where the worker is
  std::function<float(int rank, std::int64_t step, std::size_t tensor, std::size_t index)> grad =
      testing::gradient;
};

inline FlatBuffer initial(const Layout& layout) {
  FlatBuffer x(layout.flat_size());
  testing::fill(layout, x, testing::initial);
  return x;
}

inline void take(Optimizer& optimizer, Communicator& comm, FlatBuffer& x, const Stream& run,
                 int from, int to, Trace* trace = nullptr) {
  const Layout& layout = optimizer.layout();
  const std::size_t n = layout.tensors().size();
  FlatBuffer grads(layout.flat_size()), seen(layout.flat_size());
  for (int step = from; step < to; ++step) {
    testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
      const float pulled = run.pull ? x.span()[layout.tensors()[t].offset + i] : 0;
      return run.grad(comm.rank(), step, t, i) + pulled;
    });
    const auto flags = std::make_unique<bool[]>(n);
    for (std::size_t t = 0; t < n; ++t) flags[t] = unused(comm.rank(), step, t);
    StepReport report = optimizer.step(x.span(), grads.span(), {flags.get(), n});
    if (trace == nullptr) continue;
    trace->reports.push_back(std::move(report));
    trace->local.emplace_back(x.span().begin(), x.span().end());
    if (!run.look) continue;
    optimizer.to_common(seen.span());
    trace->common.emplace_back(seen.span().begin(), seen.span().end());
  }
}

inline std::vector<Trace> train(const Stream& run) {
  const Layout layout(kTensors);
  std::vector<Trace> ranks(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    Trace& trace = ranks[static_cast<std::size_t>(comm.rank())];
    Optimizer optimizer(comm, layout, run.options);
    FlatBuffer x = initial(layout);
    take(optimizer, comm, x, run, 0, run.steps, &trace);
    optimizer.to_common(x.span());
    trace.hash = param_hash(layout, x.span());
  });
  return ranks;
}

inline std::string text_of(const Options& options) {
  std::string text;
  for (const auto& [name, value] : options) text += concat(name, "=", value, " ");
  return text;
}

// All forms, with options that stream.
inline std::vector<std::pair<std::string, Options>> streams() {
  std::vector<std::pair<std::string, Options>> all;
  for (const char* method : {"local-vote", "local-ef", "dsm", "diloco", "local-muon"}) {
    if (std::string(method) == "local-muon" && !rules::has_blas()) continue;
    for (const auto& [fragments, delay] : {std::pair{"3", "0"}, {"1", "2"}, {"3", "2"}}) {
      Options options = {{"h", "4"}, {"fragments", fragments}, {"delay", delay}};
      all.emplace_back(method, options);
    }
  }
  all.push_back(
      {"local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", "3"}, {"drift_feedback", "0.75"}}});
  all.push_back({"diloco", {{"h", "3"}, {"fragments", "2"}, {"delay", "1"}, {"dense", "bf16"}}});
  return all;
}

inline Stream run_of(const std::string& method, const Options& options) {
  Stream run;
  run.options.method = method;
  run.options.options = options;
  run.options.groups = {{.lr = 0.02, .weight_decay = 0.1}};
  run.pull = true;
  return run;
}

}  // namespace pride::streaming
