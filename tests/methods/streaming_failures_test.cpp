// Fragments and delays: gradients that are not finite, dropped exchanges, ranks that stall or leave
// while an exchange is in flight.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the same run with other buckets and without overlap; texts and the world's deadline.
#include <gtest/gtest.h>

#include <latch>
#include <limits>
#include <thread>

#include "methods/streaming.h"

namespace pride::streaming_failures_test {
namespace {

using namespace streaming;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A gradient that is not finite is the matter of its rank alone, in every step; the exchange goes
// on, with the drift as it is, and all ranks come to the same parameters.
TEST(Streaming, SkipDropsTheStepOfTheRankAloneInExchangesToo) {
  for (const auto& [fragments, delay] : {std::pair{"2", "0"}, {"1", "2"}, {"2", "2"}}) {
    Stream run = run_of("local-vote", {{"h", "4"}, {"fragments", fragments}, {"delay", delay}});
    run.options.non_finite = NonFinitePolicy::kSkip;
    run.grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
      const bool bad = rank == 1 && (step == 2 || step == 3) && t == 1 && i == 7;
      return bad ? kNaN : testing::gradient(rank, step, t, i);
    };
    const auto want = train(run);
    for (const auto& [coords, overlap] : {std::pair<std::size_t, bool>{64, true}, {512, false}}) {
      run.options.bucket_coords = coords;
      run.options.overlap = overlap;
      const auto ranks = train(run);
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(ranks[r].hash, want[0].hash) << r;
        EXPECT_EQ(ranks[r].local, want[r].local) << r;
        for (const StepReport& report : ranks[r].reports) {
          EXPECT_EQ(report.skipped, r == 1 && (report.step == 2 || report.step == 3));
        }
      }
    }
    EXPECT_NE(want[0].common[4], want[0].common[0]) << "the exchange was not dropped";
  }
}

// A sum of drifts that overflows is known when the exchange has ended: it is dropped on all ranks,
// its drift comes back, and the next exchange has it.
TEST(Streaming, ASumThatOverflowsIsDroppedWhenItIsAdopted) {
  Options options = {{"h", "4"},        {"local", "sgdm"},    {"fragments", "2"}, {"delay", "2"},
                     {"outer_lr", "1"}, {"outer_beta1", "0"}, {"nesterov", "no"}};
  Stream run = run_of("diloco", options);
  run.options.groups = {{.lr = 1, .beta1 = 0}};
  run.pull = false;
  run.options.non_finite = NonFinitePolicy::kSkip;
  run.grad = [](int, std::int64_t step, std::size_t t, std::size_t i) {
    if (t != 1 || i != 7) return 0.0F;
    return step == 2 ? -3e38F : step == 5 ? 3e38F : 0.0F;
  };
  const auto want = train(run);
  for (const bool overlap : {false, true}) {
    run.options.overlap = overlap;
    run.options.bucket_coords = overlap ? 128 : 1 << 20;
    const auto ranks = train(run);
    for (const Trace& rank : ranks) {
      EXPECT_EQ(rank.hash, want[0].hash);
      EXPECT_EQ(rank.common, want[0].common);
      for (const StepReport& report : rank.reports) {
        EXPECT_EQ(report.skipped, report.step == 5) << report.step;
      }
      EXPECT_NE(rank.reports[5].skip_reason.find("step 4: the sum of the ranks' gradients of 'w1'"),
                std::string::npos)
          << rank.reports[5].skip_reason;
      EXPECT_EQ(rank.common[8], rank.common[0]) << "the drifts of +3e38 and -3e38 are 0";
    }
  }
  run.options.non_finite = NonFinitePolicy::kRaise;
  const auto errors = testing::errors_of<NonFiniteGradient>(3, [&](Communicator& comm) {
    const Layout layout(kTensors);
    FlatBuffer x = initial(layout);
    Optimizer optimizer(comm, layout, run.options);
    take(optimizer, comm, x, run, 0, 5);
    const StateDict state = optimizer.save();  // goes on to the same error
    Optimizer second(comm, layout, run.options);
    second.load(state);
    second.to_local(x.span());
    take(second, comm, x, run, 5, 6);
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("step 4: the sum"), std::string::npos) << e;
}

TEST(Streaming, RaiseFailsTheCommunicatorOfARankAlone) {
  for (const bool overlap : {false, true}) {
    Stream run = run_of("local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", "2"}});
    run.options.overlap = overlap;
    run.grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
      return rank == 1 && step == 3 && t == 1 && i == 7 ? kNaN
                                                        : testing::gradient(rank, step, t, i);
    };
    const auto errors = testing::errors_of<Error>(3, [&](Communicator& comm) {
      const Layout layout(kTensors);
      FlatBuffer x = initial(layout);
      Optimizer optimizer(comm, layout, run.options);
      take(optimizer, comm, x, run, 0, run.steps);
    });
    for (const std::string& e : errors) {
      EXPECT_NE(e.find("step 4: NaN or Inf in the gradient of 'w1' on rank 1"), std::string::npos)
          << e;
    }
  }
}

// A stalled rank: the others get an error within the time-out, at the latest in the step
// that adopts; the rank itself gets it when it continues.
TEST(Streaming, AStalledRankIsHeardOfWithinTheTimeOut) {
  const Layout layout(kTensors);
  constexpr std::chrono::milliseconds kTimeOut{300};
  for (const bool overlap : {false, true}) {
    std::latch others(2);
    const auto errors = testing::errors_of<CommError>(3, [&](Communicator& comm) {
      comm.set_timeout(kTimeOut);
      Stream run = run_of("local-vote", {{"h", "4"}, {"fragments", "2"}, {"delay", "2"}});
      run.options.overlap = overlap;
      Optimizer optimizer(comm, layout, run.options);
      FlatBuffer x = initial(layout);
      take(optimizer, comm, x, run, 0, 3);
      if (comm.rank() == 1) others.wait();
      try {
        take(optimizer, comm, x, run, 3, 8);
      } catch (...) {
        if (comm.rank() != 1) others.count_down();
        throw;
      }
    });
    for (const std::string& e : errors) EXPECT_NE(e, "") << "overlap " << overlap;
  }
}

// A rank that has ended its run serves the others' exchange before it goes.
TEST(Streaming, ARankThatEndsInADelayLeavesNoOtherBehind) {
  const Layout layout(kTensors);
  Stream run = run_of("local-vote", {{"h", "4"}, {"delay", "3"}});
  run.options.overlap = true;
  run.options.bucket_coords = 64;
  Hashes hashes(3);
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, run.options);
    FlatBuffer x = initial(layout);
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    take(optimizer, comm, x, run, 0, 4);
    if (comm.rank() == 0) return;
    optimizer.to_common(x.span());
    hashes[static_cast<std::size_t>(comm.rank())] = param_hash(layout, x.span());
  });
  EXPECT_EQ(hashes[1], hashes[2]);
}

}  // namespace
}  // namespace pride::streaming_failures_test
