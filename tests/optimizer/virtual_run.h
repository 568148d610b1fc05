// The same run by ranks on threads and by virtual workers, for comparison.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "pride/virtual_workers.h"
#include "support/training.h"

namespace pride::testing {

// What is compared, by rank.
struct WorkerResult {
  std::vector<float> own;           // parameters, as the worker has them
  std::vector<StepReport> reports;  // of virtual workers: bytes and reasons alone
  StateDict state;
};
struct WorldResult {
  std::vector<float> common;
  std::vector<WorkerResult> workers;
};

inline std::unique_ptr<bool[]> flags_of(const Training& run, int rank, std::int64_t step,
                                        std::size_t n) {
  auto flags = std::make_unique<bool[]>(n);
  for (std::size_t t = 0; t < n; ++t) flags[t] = run.unused && run.unused(rank, step, t);
  return flags;
}

inline std::vector<float> copy_of(const FlatBuffer& x) {
  return {x.span().begin(), x.span().end()};
}

// One buffer for the gradients of all workers: they are not read after hand_over().
class VirtualWorld {
 public:
  VirtualWorld(const Layout& layout, const Training& run, FlatBuffer& x)
      : layout_(layout),
        run_(run),
        x_(x),
        grads_(layout.flat_size()),
        optimizer_(layout, run.options, {run.world, run.weights}) {}

  VirtualWorkers& optimizer() { return optimizer_; }

  // In another order in each step.
  StepReport step(std::int64_t step) {
    const std::size_t n = layout_.tensors().size();
    for (int k = 0; k < run_.world; ++k) {
      const int i = step % 2 == 0 ? k : run_.world - 1 - k;
      optimizer_.to_worker(i, x_.span());
      fill(layout_, grads_, [&](std::size_t t, std::size_t c) { return run_.grad(i, step, t, c); });
      const auto flags = flags_of(run_, i, step, n);
      optimizer_.hand_over(i, x_.span(), grads_.span(), {flags.get(), n});
      std::ranges::fill(grads_.span(), std::numeric_limits<float>::quiet_NaN());
    }
    return optimizer_.step(x_.span());
  }

 private:
  const Layout& layout_;
  const Training& run_;
  FlatBuffer& x_;
  FlatBuffer grads_;
  VirtualWorkers optimizer_;
};

// Takes up `from`, the end of another run, of as many workers or of others. Empty: a new run.
inline void take_up(const WorldResult& from, Replica& optimizer, FlatBuffer& x) {
  if (from.workers.empty()) return;
  std::ranges::copy(from.common, x.span().begin());
  std::vector<StateDict> states;
  for (const WorkerResult& worker : from.workers) states.push_back(worker.state);
  optimizer.load(std::move(states));
}

inline WorldResult train_virtual(const Layout& layout, const Training& run,
                                 const WorldResult& from = {}) {
  FlatBuffer x(layout.flat_size());
  fill(layout, x, initial);
  VirtualWorld world(layout, run, x);
  take_up(from, world.optimizer(), x);
  WorldResult result;
  result.workers.resize(static_cast<std::size_t>(run.world));
  const std::int64_t begin = world.optimizer().steps_done();
  for (std::int64_t step = begin; step < begin + run.steps; ++step) {
    const StepReport report = world.step(step);
    for (std::size_t i = 0; i < result.workers.size(); ++i) {
      StepReport& mine = result.workers[i].reports.emplace_back();
      mine.bytes_sent = report.workers.at(i).bytes_sent;
      mine.bytes_received = report.workers.at(i).bytes_received;
      mine.messages_sent = report.workers.at(i).messages_sent;
      mine.skip_reason = report.workers.at(i).skip_reason;
    }
  }
  result.common = copy_of(x);
  for (int i = 0; i < run.world; ++i) {
    world.optimizer().to_worker(i, x.span());
    result.workers[static_cast<std::size_t>(i)].own = copy_of(x);
    result.workers[static_cast<std::size_t>(i)].state = world.optimizer().save(i);
  }
  return result;
}

inline WorldResult train_ranks(const Layout& layout, const Training& run,
                               const WorldResult& from = {}) {
  WorldResult result;
  result.workers.resize(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    OptimizerOptions options = run.options;
    if (!run.weights.empty()) options.vote_weight = run.weights.at(std::size_t(comm.rank()));
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), grads(layout.flat_size());
    fill(layout, x, initial);
    take_up(from, optimizer, x);
    if (!from.workers.empty()) optimizer.to_local(x.span());
    WorkerResult& mine = result.workers[static_cast<std::size_t>(comm.rank())];
    const std::size_t n = layout.tensors().size();
    const std::int64_t begin = optimizer.steps_done();
    for (std::int64_t step = begin; step < begin + run.steps; ++step) {
      fill(layout, grads,
           [&](std::size_t t, std::size_t c) { return run.grad(comm.rank(), step, t, c); });
      const auto flags = flags_of(run, comm.rank(), step, n);
      mine.reports.push_back(optimizer.step(x.span(), grads.span(), {flags.get(), n}));
    }
    const Traffic rest = optimizer.finish_exchanges();
    mine.reports.back().bytes_sent += rest.bytes_sent;
    mine.reports.back().bytes_received += rest.bytes_received;
    mine.reports.back().messages_sent += rest.messages_sent;
    mine.own = copy_of(x);
    mine.state = optimizer.save();
    optimizer.to_common(x.span());
    if (comm.rank() == 0) result.common = copy_of(x);
  });
  return result;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

inline void expect_same(const StateDict& got, const StateDict& want, const std::string& where) {
  EXPECT_EQ(got.scalars, want.scalars) << where;
  ASSERT_EQ(got.tensors.size(), want.tensors.size()) << where;
  for (const auto& [key, tensor] : want.tensors) {
    ASSERT_TRUE(got.tensors.contains(key)) << where << ": " << key;
    EXPECT_TRUE(same_bits(got.tensors.at(key).values, tensor.values)) << where << ": " << key;
  }
}

// The worlds have the same bits of parameters and states, bytes and reasons; `late`: bytes in all.
inline void expect_same(const WorldResult& got, const WorldResult& want, const std::string& where,
                        bool late = false) {
  EXPECT_TRUE(same_bits(got.common, want.common)) << where << ": parameters in common";
  for (std::size_t i = 0; i < want.workers.size(); ++i) {
    const std::string who = concat(where, ", worker ", i);
    const WorkerResult &a = got.workers[i], &b = want.workers[i];
    EXPECT_TRUE(same_bits(a.own, b.own)) << who << ": its parameters";
    expect_same(a.state, b.state, who);
    std::uint64_t sent[2] = {}, received[2] = {}, messages[2] = {};
    for (std::size_t s = 0; s < b.reports.size(); ++s) {
      EXPECT_EQ(a.reports[s].skip_reason, b.reports[s].skip_reason) << who << ", step " << s;
      for (const int k : {0, 1}) {
        const StepReport& report = (k == 0 ? a : b).reports[s];
        sent[k] += report.bytes_sent;
        received[k] += report.bytes_received;
        messages[k] += report.messages_sent;
      }
      if (late && s + 1 < b.reports.size()) continue;  // ranks count what has arrived
      EXPECT_EQ(sent[0], sent[1]) << who << ", up to step " << s;
      EXPECT_EQ(received[0], received[1]) << who << ", up to step " << s;
      EXPECT_EQ(messages[0], messages[1]) << who << ", up to step " << s;
    }
  }
}

}  // namespace pride::testing
