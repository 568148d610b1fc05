// Choice of the instruction set by name and by PRIDE_ISA. A process reads the environment once, so
// each case of PRIDE_ISA runs in its own process.
// SPDX-License-Identifier: Apache-2.0
#include "pride/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::cpu_test {
namespace {

TEST(Cpu, ListsScalarLastAndForcesEachByName) {
  const auto isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.back(), "SCALAR");
  for (const std::string& isa : isas) {
    force_isa(isa);
    EXPECT_EQ(active_isa(), isa);
    EXPECT_EQ(available_isas(), isas) << "forcing must not shorten the list";
  }
  force_isa("");
  EXPECT_EQ(active_isa(), isas.front());
}

TEST(Cpu, UnknownNameIsRefusedWithTheUsableOnes) {
  force_isa("SCALAR");
  try {
    force_isa("AVX9");
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("AVX9"), std::string::npos) << text;
    for (const std::string& isa : available_isas()) {
      EXPECT_NE(text.find(isa), std::string::npos) << text;
    }
  }
  EXPECT_EQ(active_isa(), "SCALAR") << "a refused name changes nothing";
  force_isa("");
}

// Runs in a child before the first choice; prints the result or the exception of active_isa().
[[noreturn]] void report_choice(const char* env) {
  ::setenv("PRIDE_ISA", env, 1);
  float x = 2;
  kernels::scale(0.5f, {&x, 1});  // a kernel before active_isa(), as in a real program
  try {
    std::cerr << "active " << active_isa() << " x " << x << '\n';
  } catch (const InvalidArgument& error) {
    std::cerr << "refused " << error.what() << '\n';
  }
  std::exit(0);
}

TEST(CpuDeathTest, EnvironmentForcesTheScalarCode) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(report_choice("SCALAR"), ::testing::ExitedWithCode(0), "active SCALAR x 1");
}

TEST(CpuDeathTest, EnvironmentForcesTheBest) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(report_choice(available_isas().front().c_str()), ::testing::ExitedWithCode(0),
              "active " + available_isas().front());
}

TEST(CpuDeathTest, UnusableEnvironmentIsReportedNotIgnored) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(report_choice("MMX"), ::testing::ExitedWithCode(0),
              "refused PRIDE_ISA: no instruction set 'MMX' here; usable: .*SCALAR");
}

}  // namespace
}  // namespace pride::cpu_test
