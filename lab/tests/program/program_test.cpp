// pride-lab's command line: help, wrong usage, and how `pride` finds it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/run_here.h"
#include "train_names.h"

namespace pride::app {
namespace {

using namespace test;

TEST(Lab, IsFoundByPride) {
  const Outcome train = run_program({"train", "--help"});
  EXPECT_EQ(train.code, 0);
  EXPECT_EQ(train.out.find("{false}"), std::string::npos) << train.out;
  EXPECT_EQ(train.out.find("not installed"), std::string::npos) << train.out;
  EXPECT_EQ(run_program({"bench", "step", "--help"}).code, 0);
  const auto info = json_of(run_program({"info", "--json"}));
  EXPECT_TRUE(info.at("programs").at("pride-lab").is_string());
  EXPECT_EQ(info.at("default_text").at("hash").get<std::string>().size(), 16U);
  EXPECT_GT(info.at("default_text").at("train_bytes"), 1'000'000);
#if PRIDE_HAVE_TORCH
  EXPECT_FALSE(info.at("libtorch").get<std::string>().empty());
#else
  EXPECT_TRUE(info.at("libtorch").is_null());
#endif
  expect_contains(run_program({"info"}).out, {"default text  yes: ", "libtorch"});
}

// Flags of the examples are flags of the command.
TEST(Lab, HelpEndsWithExamples) {
  for (const char* command :
       {"train", "compare", "sweep", "tokenize", "generate", "evaluate", "report", "plan"}) {
    const Outcome help = run_here({command, "--help"});
    const std::size_t at = help.out.find("Examples:\n  pride " + std::string(command));
    if (help.out.find("not in this build") != std::string::npos) continue;
    ASSERT_NE(at, std::string::npos) << help.out;
    std::istringstream words(help.out.substr(at));
    for (std::string word; words >> word;) {
      if (word.starts_with("--")) expect_contains(help.out.substr(0, at), word);
    }
  }
}

TEST(Lab, RefusesEmptyValues) {
  expect_usage({"report", "runs", "--out", ""}, "--out: must not be empty");
  expect_usage({"tokenize", "x", "--out", ""}, "--out: must not be empty");
  expect_usage({"bench", "loader", "--data", ""}, "--data: must not be empty");
#if PRIDE_HAVE_TORCH
  for (const char* flag : {"--out", "--data", "--init", "--resume", "--config"}) {
    expect_usage({"train", flag, ""}, concat(flag, ": must not be empty"));
  }
  expect_usage({"sweep", "x.toml", "--out", ""}, "--out: must not be empty");
#endif
}

#if PRIDE_HAVE_TORCH
TEST(Lab, RefusesWrongUsage) {
  expect_usage({"train", "--step", "10"}, "unknown flag --step; did you mean --steps?");
  expect_usage({"train", "--no-overlp"}, "did you mean --no-overlap?");
  expect_usage({"plan", "--params", "1000"}, "--params needs --backward");
  expect_usage({"train", "--vote-weight", "none"}, "--vote-weight none");
  expect_usage({"train", "--steps", "x"}, "--steps");
  expect_usage({"train", "--image-size", "32"}, "--image-size is for imagenet only");
}
#else
TEST(Lab, SaysThatTrainingNeedsLibtorch) {
  expect_failure({"train", "--task", "lm"}, "no libtorch");
  expect_failure({"compare", "--methods", "all"}, "no libtorch");
  expect_failure({"sweep", "experiment.toml"}, "no libtorch");
}
#endif

}  // namespace
}  // namespace pride::app
