// to_common() and to_local(): the common parameters between exchanges of local steps.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "methods/local_run.h"
#include "pride/registry.h"
#include "rules/orthogonalise.h"

namespace pride::common_parameters_test {
namespace {

using testing::kLocalMethods;
using testing::kTensors;
using testing::options_of;

std::uint64_t common_hash(Optimizer& optimizer, FlatBuffer& x) {
  optimizer.to_common(x.span());
  const std::uint64_t hash = param_hash(optimizer.layout(), x.span());
  optimizer.to_local(x.span());
  return hash;
}

TEST(CommonParameters, AreThoseOfTheLastExchangeOnAllRanks) {
  const Layout layout(kTensors);
  constexpr int kWorld = 3;
  for (const char* method : kLocalMethods) {
    std::vector<std::vector<std::uint64_t>> common(kWorld), own(kWorld);
    run_world(kWorld, [&](Communicator& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      Optimizer optimizer(comm, layout, options_of(method));
      FlatBuffer x(layout.flat_size());
      testing::fill(layout, x, testing::initial);
      for (int step = 0; step < 8; ++step) {
        testing::train(optimizer, comm, x, step, step + 1);
        own[r].push_back(param_hash(layout, x.span()));
        common[r].push_back(common_hash(optimizer, x));
        EXPECT_EQ(param_hash(layout, x.span()), own[r].back()) << "to_local() is not the way back";
      }
    });
    for (std::size_t step = 0; step < 8; ++step) {
      SCOPED_TRACE(concat(method, ", step ", step));
      EXPECT_EQ(common[0][step], common[2][step]);
      EXPECT_EQ(common[0][step] == common[0][step == 0 ? 0 : step - 1], step == 0 || step % 4 != 3);
      EXPECT_EQ(own[0][step] == own[2][step], step % 4 == 3);
      EXPECT_EQ(own[0][step] == common[0][step], step % 4 == 3);
    }
  }
}

// A run continues to the same bits from state and common parameters of any step.
TEST(CommonParameters, AreSavedWithAStateInTheMiddleOfAPhase) {
  const Layout layout(kTensors);
  for (const char* method : kLocalMethods) {
    for (const int saved_at : {1, 2, 4, 7}) {
      run_world(3, [&](Communicator& comm) {
        FlatBuffer x(layout.flat_size()), y(layout.flat_size());
        testing::fill(layout, x, testing::initial);
        testing::fill(layout, y, testing::initial);
        Optimizer whole(comm, layout, options_of(method));
        testing::train(whole, comm, x, 0, 10);
        Optimizer first(comm, layout, options_of(method));
        testing::train(first, comm, y, 0, saved_at);
        first.to_common(y.span());
        const StateDict state = first.save();

        Optimizer second(comm, layout, options_of(method));
        second.load(state);
        second.to_local(y.span());
        testing::train(second, comm, y, saved_at, 10);
        EXPECT_EQ(param_hash(layout, x.span()), param_hash(layout, y.span()))
            << method << ", saved after " << saved_at << " steps, rank " << comm.rank();
      });
    }
  }
}

// Two or four ranks continue from the states of three; their replicas are equal.
TEST(CommonParameters, GoOnWithAnotherNumberOfRanks) {
  const Layout layout(kTensors);
  for (const char* method : kLocalMethods) {
    std::vector<StateDict> states(3);
    std::uint64_t saved = 0;
    run_world(3, [&](Communicator& comm) {
      FlatBuffer x(layout.flat_size());
      Optimizer optimizer(comm, layout, options_of(method));
      testing::train(optimizer, comm, x, 0, 6);
      states[static_cast<std::size_t>(comm.rank())] = optimizer.save();
      if (comm.rank() == 0) saved = common_hash(optimizer, x);
    });
    for (const int world : {2, 4}) {
      std::vector<std::uint64_t> hashes(static_cast<std::size_t>(world));
      run_world(world, [&](Communicator& comm) {
        FlatBuffer x(layout.flat_size());
        Optimizer optimizer(comm, layout, options_of(method));
        optimizer.load(states);
        optimizer.to_local(x.span());
        EXPECT_EQ(common_hash(optimizer, x), saved) << method;
        testing::train(optimizer, comm, x, 6, 8);
        hashes[static_cast<std::size_t>(comm.rank())] = param_hash(layout, x.span());
      });
      for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]) << method;
      EXPECT_NE(hashes[0], saved);
    }
  }
}

TEST(CommonParameters, OfMethodsWithoutLocalStepsAreTheParameters) {
  const Layout layout(kTensors);
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {.method = "dlion-vote"});
    FlatBuffer x(layout.flat_size()), small(64);
    testing::train(optimizer, comm, x, 0, 2);
    const std::uint64_t before = param_hash(layout, x.span());
    EXPECT_EQ(common_hash(optimizer, x), before);
    EXPECT_THROW(optimizer.to_common(small.span()), InvalidArgument);
    FlatBuffer grads(layout.flat_size());
    optimizer.begin_step(x.span(), grads.span());
    EXPECT_THROW(optimizer.to_local(x.span()), InvalidArgument);
    optimizer.finish_step();
  });
}

}  // namespace
}  // namespace pride::common_parameters_test
