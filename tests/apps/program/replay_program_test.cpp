// `pride replay`: files, messages and exit codes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "program/io/safetensors.h"
#include "support/run_here.h"

namespace pride::app {
namespace {

using namespace test;

SafeTensor tensor(std::vector<std::int64_t> shape, std::vector<float> values) {
  return {.dtype = "F32", .shape = std::move(shape), .values = std::move(values)};
}

// Two steps of three workers over one tensor of two; no blend is near zero.
class ReplayProgram : public ::testing::Test {
 protected:
  ReplayProgram() {
    write_safetensors(in_, {{"param.w", tensor({2}, {1.0F, -1.0F})},
                            {"grad.w", tensor({2, 3, 2}, {1, 1, 1, -1, -1, -1,  //
                                                          1, 1, 1, -1, -1, -1})}});
  }
  std::vector<std::string> arguments(std::vector<std::string> more = {}) const {
    return plus(
        words("replay --method dlion-vote --input ", in_.string(), " --output ", out_.string()),
        more);
  }

  TempFolder folder_;
  std::filesystem::path in_ = folder_.path() / "in.safetensors";
  std::filesystem::path out_ = folder_.path() / "out.safetensors";
};

TEST_F(ReplayProgram, WritesTheParametersAfterEachStep) {
  const Outcome outcome =
      run_program(arguments({"--lr", "0.25", "--weight-decay", "0", "--beta1", "0.9", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // first coordinate: two workers of three vote +, second: two of three vote -
  const SafeTensor w = read_safetensors(out_).at("param.w");
  EXPECT_EQ(w.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(w.values, (std::vector<float>{0.75F, -0.75F, 0.5F, -0.5F}));
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report.at("method"), "dlion-vote");
  EXPECT_EQ(report.at("workers"), 3);
  EXPECT_EQ(report.at("steps"), 2);
  EXPECT_EQ(report.at("n_coords"), 2);
  EXPECT_GT(report.at("bytes_per_step_and_rank"), 0.0);
  EXPECT_GT(report.at("ratio_to_fp32_ring"), 0.0);
  EXPECT_EQ(report.at("param_hash").get<std::string>().size(), 16U);
  EXPECT_EQ(report.at("param_hash"), read_safetensors_metadata(out_).at("param_hash"));
}

TEST_F(ReplayProgram, SaysTheSameInWords) {
  const Outcome outcome = run_here(arguments());
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "dlion-vote: 2 steps of 3 workers, 2 coordinates");
  expect_contains(outcome.out, "param_hash: ");
}

TEST_F(ReplayProgram, DecaysAllTensorsUnlessTold) {
  ASSERT_EQ(run_here(arguments({"--lr", "0.25", "--weight-decay", "1"})).code, 0);
  EXPECT_EQ(read_safetensors(out_).at("param.w").values[0], 0.5F);
  ASSERT_EQ(run_here(arguments({"--lr", "0.25", "--weight-decay", "1", "--no-decay", "w*"})).code,
            0);
  EXPECT_EQ(read_safetensors(out_).at("param.w").values[0], 0.75F);
}

TEST_F(ReplayProgram, FailsWithTheReason) {
  expect_usage(arguments({"--no-decay", "bias"}), "\"bias\" matches none");
  expect_usage(arguments({"--lr", "nan"}), "learning rate = nan");
  expect_usage(arguments({"--method-opt", "colour=red"}), "colour");
  expect_usage({"replay", "--method", "sgd", "--input", in_.string(), "--output", out_.string()},
               "sgd");
  expect_failure({"replay", "--method", "lion", "--input", "/none", "--output", out_.string()},
                 "cannot read /none");
  EXPECT_FALSE(std::filesystem::exists(out_));
  folder_.write("in.safetensors", "not a header");
  expect_failure(arguments(), "not a safetensors file");
  write_safetensors(in_, {{"param.w", tensor({2}, {1.0F, -1.0F})}});
  expect_failure(arguments(), "\"grad.w\" is missing");
}

TEST_F(ReplayProgram, LeavesTheRecordingAsItIs) {
  const std::string before = bytes_of(in_);
  const auto link = folder_.path() / "link";
  std::filesystem::create_symlink(in_, link);
  for (const auto& file : {in_, folder_.path() / "." / "in.safetensors", link}) {
    out_ = file;
    expect_usage(arguments(), "is the input file itself");
  }
  EXPECT_EQ(bytes_of(in_), before);
}

TEST_F(ReplayProgram, FailsWhereEveryStepIsSkipped) {
  const auto record = [&](float last) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    write_safetensors(
        in_, {{"param.w", tensor({1}, {1.0F})}, {"grad.w", tensor({2, 1, 1}, {nan, last})}});
    return arguments({"--non-finite", "skip"});
  };
  expect_failure(record(std::numeric_limits<float>::infinity()), "all 2 steps were skipped");
  EXPECT_FALSE(std::filesystem::exists(out_));
  const Outcome one = run_here(record(1.0F));
  EXPECT_EQ(one.code, 0) << one.err;
  expect_contains(one.out, "1 steps skipped");
}

TEST_F(ReplayProgram, FailsWhenTheOutputCannotBeWritten) {
  out_ = folder_.path() / "none" / "out.safetensors";
  expect_failure(arguments(), "cannot create");
}

TEST_F(ReplayProgram, RefusesWrongUsage) {
  expect_usage(arguments({"--lr", "fast"}), "--lr");
  expect_usage(arguments({"--method-opt", "tie"}), "'tie' must be key=value");
  expect_usage(arguments({"--method-opt", "tie=zero", "--method-opt", "tie=hash"}), "given twice");
  expect_usage(arguments({"--non-finite", "ignore"}), "--non-finite");
  expect_usage(arguments({"--bucket-coords", "0"}), "--bucket-coords");
}

}  // namespace
}  // namespace pride::app
