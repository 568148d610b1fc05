// What the device of the tests is for.
// SPDX-License-Identifier: Apache-2.0
#include "support/test_device.h"

#include <gtest/gtest.h>

namespace pride {
namespace {

using testing::TestDevice;

TEST(TestDeviceDeathTest, FindsAHostThatTouchesItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TestDevice device;
  auto* memory = static_cast<volatile float*>(device.allocate(4));
  EXPECT_DEATH(*memory = 1, "");
}

// Without a wait the host reads what was there before.
TEST(TestDevice, RunsNothingBeforeAWait) {
  TestDevice device;
  void* const memory = device.allocate(4);
  std::uint32_t host = 1;
  device.fill(memory, 7, 1);
  device.copy_out(&host, memory, 4);
  const auto all = device.record();
  EXPECT_EQ(host, 1u);
  device.wait(all);
  EXPECT_EQ(host, 7u);
}

}  // namespace
}  // namespace pride
