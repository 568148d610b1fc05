// Chains of random calls on shared memory, whose jobs the tests' device runs in a random order. The
// oracle is the host, which runs them in theirs: a read or write that is missing among a call's
// touches changes values.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "device/random_calls.h"

namespace pride::space_test {
namespace {

TEST(DeviceCalls, RunAsIfInTheirOrder) {
  constexpr std::uint32_t kChains = 300;
  std::array<int, RandomCalls::kKinds> drawn = {};
  for (std::uint32_t seed = 1; seed <= kChains && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Both both(seed);
    RandomCalls calls(both);
    run(both, [&](Space& space, bool on) { calls.run(space, on, seed, 60); });
    calls.expect_equal(seed);
    for (std::size_t k = 0; k < drawn.size(); ++k) drawn[k] += calls.drawn[k];
  }
  for (std::size_t k = 0; k < drawn.size(); ++k) EXPECT_GT(drawn[k], 100) << "call " << k;
}

}  // namespace
}  // namespace pride::space_test
