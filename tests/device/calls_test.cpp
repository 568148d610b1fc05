// Chains of random calls on shared memory, whose jobs the tests' device runs in a random order. The
// oracle is the host, which runs them in theirs: a read or write that is missing among a call's
// touches changes values.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>

#include "device/random_calls.h"
#include "device/shared_arrays.h"

namespace pride::space_test {
namespace {

using Drawn = std::array<int, device::kCallKinds>;

// Of a few kinds, so that launches merge many.
void run_chain(SharedArrays& arrays, Space& space, Drawn& drawn) {
  device::RandomCalls calls(arrays);
  std::array<std::size_t, 6> kinds;
  for (std::size_t& kind : kinds) kind = arrays.below(drawn.size());
  for (int k = 0; k < 60; ++k) {
    arrays.begin_call();
    const std::size_t kind = kinds[arrays.below(kinds.size())];
    switch (arrays.below(20)) {
      case 0:
        space.clear(arrays.bits());
        break;
      case 1:
        space.forget({arrays.fault_word(), 1});
        break;
      default:
        std::visit([&](const auto& call) { space.run(call); }, calls.of_kind(kind));
        ++drawn[kind];
    }
  }
}

TEST(DeviceCalls, RunAsIfInTheirOrder) {
  Drawn drawn = {};
  for (std::uint32_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Both both(seed);
    SharedArrays arrays(both);
    run(both, [&](Space& space, bool on) {
      arrays.begin(on, seed);
      run_chain(arrays, space, drawn);
    });
    arrays.expect_equal(seed);
  }
  for (std::size_t kind = 0; kind < drawn.size(); ++kind) {
    EXPECT_GT(drawn[kind], 100) << "alternative " << kind << " of kernels::Call";
  }
}

}  // namespace
}  // namespace pride::space_test
