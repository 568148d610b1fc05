// Rates and times with units. Oracle: written out by hand.
// SPDX-License-Identifier: Apache-2.0
#include "plan/units.h"

#include <gtest/gtest.h>

#include "pride/error.h"

namespace pride::app {
namespace {

TEST(Units, ReadRatesPerSecondAsBytes) {
  EXPECT_DOUBLE_EQ(parse_rate("1Gbit"), 125e6);
  EXPECT_DOUBLE_EQ(parse_rate("100Mbit"), 12.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("12.5MB"), 12.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("800bit"), 100);
  EXPECT_DOUBLE_EQ(parse_rate("1e3kB"), 1e6);
  for (const char* text : {"1Gbit/s", "1Gbps", "1gbit", "1 Gbit/s", "1Gb/s", "1e9bit", "1000Mbits",
                           "125MB/s", "125MBps"}) {
    EXPECT_DOUBLE_EQ(parse_rate(text), 125e6) << text;
  }
  EXPECT_DOUBLE_EQ(parse_rate("2MiB/s"), 2 << 20);
}

TEST(Units, ReadTimesAsSeconds) {
  EXPECT_DOUBLE_EQ(parse_time("50us"), 50e-6);
  EXPECT_DOUBLE_EQ(parse_time("1.5s"), 1.5);
  EXPECT_DOUBLE_EQ(parse_time("0ms"), 0);
  EXPECT_DOUBLE_EQ(parse_time("20ns"), 20e-9);
  EXPECT_DOUBLE_EQ(parse_time("3 \u00B5s"), 3e-6);
  EXPECT_DOUBLE_EQ(parse_time("2min"), 120);
}

TEST(Units, RefuseWhatHasNoUnitOrNoSense) {
  for (const char* text : {"", "1", "Gbit", "1e9", "1  Gbit", "0Gbit", "-1Gbit", "nanGbit",
                           "infGbit", "1e400Gbit", "1e308Gbit", "1Gbitss", "1ms", "1/s"}) {
    EXPECT_THROW(parse_rate(text), InvalidArgument) << text;
  }
  for (const char* text : {"", "1", "ms", "-1ms", "nanms", "1m", "1Gbit"}) {
    EXPECT_THROW(parse_time(text), InvalidArgument) << text;
  }
  try {
    parse_rate("7parsec");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("'7parsec'"), std::string::npos) << error.what();
  }
}

TEST(Units, WriteThreeDigits) {
  EXPECT_EQ(time_text(21e-6), "21 us");
  EXPECT_EQ(time_text(0.0153), "15.3 ms");
  EXPECT_EQ(time_text(999.7e-6), "1 ms");
  EXPECT_EQ(time_text(0.9997), "1 s");
  EXPECT_EQ(time_text(0.254), "254 ms");
  EXPECT_EQ(time_text(2.5), "2.5 s");
  EXPECT_EQ(time_text(1234), "1234 s");
  EXPECT_EQ(bandwidth_text(117.6e6), "940.8 Mbit/s");
  EXPECT_EQ(bandwidth_text(1.25e9), "10.00 Gbit/s");
}

}  // namespace
}  // namespace pride::app
