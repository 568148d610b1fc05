// Times of calls, and rates of copies, on the device of the tests: what runs and what is freed, not
// how fast.
// SPDX-License-Identifier: Apache-2.0
#include "device/timing.h"

#include <gtest/gtest.h>

#include <limits>

#include "pride/device.h"
#include "pride/error.h"
#include "support/test_device.h"

namespace pride {
namespace {

using testing::TestDevice;

TEST(SecondsOfCalls, AreOfAsManyMeasurementsAsWereAskedFor) {
  TestDevice device;
  int done = 0;
  const auto times =
      device::seconds_of_calls(device, 0, 3, [&] { device.call([&done] { ++done; }); });
  EXPECT_EQ(times.size(), 3U);
  for (const double time : times) EXPECT_GT(time, 0);
  EXPECT_GE(done, 3 + 3 + 3) << "six warm up";
  const int all = done;
  device.wait(device.record());
  EXPECT_EQ(done, all) << "a call was still queued";
}

TEST(MeasureCopies, GivesRatesAndFreesItsMemory) {
  TestDevice device;
  const CopyRates rates = measure_copies(device, 64 << 10, 0, 1);
  EXPECT_GT(rates.memory, 0);
  EXPECT_GT(rates.to_host, 0);
  EXPECT_GT(rates.from_host, 0);
  EXPECT_TRUE(rates.link() == rates.to_host || rates.link() == rates.from_host);
  EXPECT_LE(rates.link(), rates.to_host);
  EXPECT_LE(rates.link(), rates.from_host);
  EXPECT_EQ(device.held(), 0U);
}

TEST(MeasureCopies, RefusesWhatCannotBeMeasured) {
  TestDevice device;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  EXPECT_THROW(measure_copies(device, 3, 0, 1), InvalidArgument);
  EXPECT_THROW(measure_copies(device, 64, -1, 1), InvalidArgument);
  EXPECT_THROW(measure_copies(device, 64, kNever, 1), InvalidArgument);
  EXPECT_THROW(measure_copies(device, 64, 0, 0), InvalidArgument);
  // more than the device has; the first array is freed
  EXPECT_THROW(measure_copies(device, std::size_t{3} << 28, 0, 1), Error);
  EXPECT_EQ(device.held(), 0U);
}

}  // namespace
}  // namespace pride
