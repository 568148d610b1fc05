// Counts and numbers in the values of flags. Oracle: written out by hand.
// SPDX-License-Identifier: Apache-2.0
#include "program/flag_values.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace pride::app {
namespace {

TEST(Counts, AreReadAsPeopleWriteThem) {
  const std::pair<const char*, const char*> same[] = {
      {"1e7", "10000000"}, {"10M", "10000000"}, {"2.5M", "2500000"},
      {"1.50k", "1500"},   {"1E3", "1000"},     {"7G", "7000000000"},
      {"0", "0"},          {"007", "7"},        {"18446744073709551615", "18446744073709551615"}};
  for (const auto& [text, digits] : same) EXPECT_EQ(digits_of_count(text), digits) << text;
  for (const char* text : {"", "1.5", "1e-3", "M", "10 M", "10MB", "1e99", "x", "1_000", "-3"}) {
    EXPECT_EQ(digits_of_count(text), text);
  }
}

TEST(Counts, OfBytesHaveTheirUnit) {
  const std::pair<const char*, const char*> same[] = {{"64kB", "64000"},
                                                      {"100MB", "100000000"},
                                                      {"64KiB", "65536"},
                                                      {"1MiB", "1048576"},
                                                      {"8", "8"}};
  for (const auto& [text, digits] : same) EXPECT_EQ(digits_of_count(text, true), digits) << text;
  for (const char* text : {"64Ki", "1.5MiB", "64kb"}) EXPECT_EQ(digits_of_count(text, true), text);
}

TEST(NumberReader, RefusesWhatDoesNotFitItsTypeOrLimits) {
  const auto read = [](const CLI::Validator& reader, std::string text) {
    const std::string refusal = reader(text);
    return refusal.empty() ? "= " + text : refusal;
  };
  EXPECT_EQ(read(number_reader<int>({1, 100}), "1e2"), "= 100");
  EXPECT_EQ(read(number_reader<int>({1, 100}), "1e3"), "1e3 is not an integer from 1 to 100");
  EXPECT_EQ(read(number_reader<int>(), "-3"), "= -3");
  EXPECT_EQ(read(number_reader<int>({1}), "3G"), "3G is not an integer from 1 to 2147483647");
  EXPECT_EQ(read(number_reader<std::uint64_t>(), "18446744073709551615"), "= 18446744073709551615");
  EXPECT_EQ(read(number_reader<std::uint64_t>(), "-1"),
            "-1 is not an integer from 0 to 18446744073709551615");
  EXPECT_EQ(read(number_reader<double>({0.001, 3600}), "0"),
            "0 is not a number from 0.001 to 3600");
  EXPECT_EQ(read(number_reader<double>({0.001, 3600}), "nan"),
            "nan is not a number from 0.001 to 3600");
  EXPECT_EQ(read(number_reader<double>(), "1e-400"), "1e-400 is too small for a number");
  EXPECT_EQ(read(number_reader<double>(), "1e400"), "1e400 is too large for a number");
  EXPECT_EQ(read(number_reader<double>(), "0.9x"), "'0.9x' is not a number");
}

}  // namespace
}  // namespace pride::app
