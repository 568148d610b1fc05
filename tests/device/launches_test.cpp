// Which calls a device's space merges into a launch, and when its queue waits. The oracle of values
// is the host.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "base/wire.h"
#include "device/both_spaces.h"

namespace pride::space_test {
namespace {

// A call on a part of what a longer one has touched, before the same kernel on another part.
TEST(DeviceKernels, DependOnPartsOfLongerRanges) {
  Both both(3);
  const std::size_t n = 4000;
  Pair<float> x(both, both.floats(n)), y(both, both.floats(n));
  run(both, [&](Space& space, bool on) {
    const auto all = x.at(on), out = y.at(on);
    space.run(kernels::Fill{out.first(10), 1});
    space.run(kernels::Sum{all, all, all});
    space.run(kernels::Sum{all.subspan(8, 16), all.subspan(8, 16), all.subspan(8, 16)});
    space.run(
        kernels::Fill{all.subspan(2000, 100), 0.25f});  // after the sums, not with the first fill
    space.run(kernels::Sum{all.first(500), all.subspan(1990, 500), out.first(500)});
  });
  x.expect_equal("x", n);
  y.expect_equal("y", n);
}

// Three sums of each of ten tensors, where each sum needs the one before: three launches.
TEST(DeviceKernels, MergeCallsThatDoNotDependOnEachOther) {
  Both both(3);
  Pair<float> x(both, both.floats(1000)), y(both, both.floats(1000));
  run(both, [&](Space& space, bool on) {
    for (std::size_t t = 0; t < 10; ++t) {
      const auto part = x.at(on).subspan(100 * t, 100), shared = y.at(on).first(100);
      for (int k = 0; k < 3; ++k) space.run(kernels::Sum{part, shared, part});
    }
  });
  EXPECT_EQ(both.device.launches, 3);
  x.expect_equal("x", 1000);
}

// Several calls note faults in a word; a call whose guard is that word comes after them.
TEST(DeviceKernels, MergeNotesButNotTheirGuards) {
  Both both(3);
  const std::size_t n = 100;
  Pair<float> x(both, both.floats(3 * n)), y(both, both.floats(3 * n));
  Pair<std::uint64_t> bits(both, both.words(5 * 128));
  Pair<std::uint32_t> faults(both, {2, Wire::kNoTensor});
  run(both, [&](Space& space, bool on) {
    std::uint32_t* const words = faults.at(on).data();
    kernels::SharedBits zeros;
    zeros.x = Floats(y.at(on).first(n));
    for (std::uint32_t t = 0; t < 3; ++t) {
      const auto signs = bits.at(on).subspan(2 * t, 2);
      space.run(
          kernels::PackSigns{x.at(on).subspan(n * t, n), zeros, signs, words, {words + 1, 9 - t}});
    }
    space.run(kernels::PackSigns{
        y.at(on).first(n), zeros, bits.at(on).subspan(6, 2), words + 1, {words + 1, 5}});
  });
  EXPECT_EQ(both.device.launches, 2);
  bits.expect_equal("bits", n);
  faults.expect_equal("faults", n);
}

// The queue waits when something is queued: once for a stream, and for each of several.
TEST(DeviceSpace, WaitsForTheCallersStreamsOnceBeforeItsNextWork) {
  Both both(3);
  Pair<float> x(both, both.floats(100));
  int a = 0, b = 0;
  both.on.run(kernels::Scale{2, x.at(true)});
  for (void* stream : {&a, &a, &b, &b}) both.on.after(stream);
  both.on.run(kernels::Scale{2, x.at(true)});
  EXPECT_EQ(both.device.awaited, (std::vector<void*>{&a}));
  both.on.record();
  EXPECT_EQ(both.device.awaited, (std::vector<void*>{&a, &b}));
  both.on.wait(both.on.record());
  EXPECT_EQ(both.device.awaited.size(), 2u);
}

TEST(DeviceSpace, AFrameIsFreedAfterTheCopiesThatUseIt) {
  const auto device = std::make_shared<TestDevice>();
  DeviceSpace space(device);
  auto frame = space.frame(4096);
  std::memset(frame.get(), 7, 4096);
  void* const memory = device->allocate(4096);
  device->copy_in(memory, frame.get(), 4096);
  frame.reset();
  std::vector<std::byte> bytes(4096);
  device->get(memory, bytes);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{7}; }));
}

}  // namespace
}  // namespace pride::space_test
