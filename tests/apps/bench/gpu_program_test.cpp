// `pride bench --device cuda` on the fake driver, and `pride plan` with a GPU's rates: rows,
// refusals.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/run_here.h"
#include "support/temp_folder.h"

namespace pride::app::gpu_bench {
namespace {

using nlohmann::json;
using namespace test;

Outcome pride(const std::string& arguments) { return run_here(words(arguments)); }

std::vector<json> lines_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json_lines(outcome.out);
}

// On the fake driver, whose GPU is the CPU.
class BenchGpu : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("PRIDE_CUDA_DRIVER", PRIDE_FAKE_CUDA, 1);
    setenv("PRIDE_NVRTC", PRIDE_FAKE_NVRTC, 1);
    setenv("PRIDE_CACHE", folder().path().c_str(), 1);
  }
  static TempFolder& folder() {
    static TempFolder made;
    return made;
  }
};

TEST_F(BenchGpu, KernelsStandBesideTheCopiesOfTheGpu) {
  const auto lines = lines_of(
      pride("bench kernels --device cuda --json --seconds 0.001 --reps 1 --sizes 1000,100000 "
            "--filter lion_signs|apply_signs"));
  ASSERT_EQ(lines.size(), 1u + 2 * 5)
      << "lion_signs reads bfloat16, and zeros take a path of theirs";
  EXPECT_EQ(lines[0]["gpu"], "cuda:0 (Fake A)");
  for (const char* rate : {"memory", "to_host", "from_host"}) {
    EXPECT_GT(lines[0][concat(rate, "_bytes_per_s")], 0);
  }
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_GT(lines[i]["median_s"], 0);
    EXPECT_EQ(lines[i]["wrong_arrays"], 0);
    EXPECT_GT(lines[i]["times_copy"], 0);
  }
  // gradient, momentum twice, a bit; and one word of faults
  EXPECT_NEAR(lines[1]["bytes_moved"].get<double>() / 1000, 12.125, 0.1);
  EXPECT_EQ(lines[1]["name"], "lion_signs");
  EXPECT_EQ(lines[2]["name"], "lion_signs/zeros");
  EXPECT_EQ(lines[3]["dtype"], "bfloat16");
  EXPECT_NEAR(lines[3]["bytes_moved"].get<double>() / 1000, 10.125, 0.1);
  EXPECT_EQ(pride("bench kernels --device cuda --isa all").code, 2);
}

TEST_F(BenchGpu, StepsHaveEqualParametersAndAreBesideACopy) {
  for (const char* tensors : {"1", "3"}) {
    const auto outcome =
        pride(concat("bench optimizer --device cuda --json --workers 2 --seconds 0.01 --reps 2 "
                     "--sizes 5000 --methods dlion-vote,lion:dense=bf16,adamw --tensors ",
                     tensors));
    const auto lines = lines_of(outcome);
    ASSERT_EQ(lines.size(), 2u + 2 * 2) << "lion:dense=bf16 is left out";
    EXPECT_EQ(lines[0]["name"], "copy, 20 B each");
    EXPECT_EQ(lines[1]["name"], "no exchange");
    for (std::size_t i = 2; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["wrong_ranks"], 0) << lines[i];
      EXPECT_GT(lines[i]["times_copy"], 0);
    }
  }
  expect_contains(pride("bench optimizer --device cuda --workers 1 --seconds 0.01 --reps 1 --sizes "
                        "64 --methods dlion-vote,dgc")
                      .out,
                  {"cuda:0 (Fake A)", "dgc is left out: dgc has no kernels for devices"});
}

json planned(const std::string& arguments) {
  return json_of(
      pride("plan --json --workers 1 --seconds 0.01 --methods lion,dlion-vote " + arguments));
}

double arithmetic_of(const json& plan) { return plan["methods"][1]["arithmetic_s"]; }

TEST(PlanOfAGpu, TakesTheRatesOfAGpuAndSaysUpToWhichLinksItPays) {
  const std::string paper =
      "--world 4 --bandwidth 1Gbit --latency 50us --params 10M --backward 50ms ";
  const std::string gpu = paper + "--device-memory 3TB/s --device-link 25GB/s ";
  const json there = planned(gpu), here = planned(paper);
  EXPECT_EQ(there["device_bytes_per_s"], 3e12);
  EXPECT_TRUE(here["device_bytes_per_s"].is_null());
  const double on_gpu = arithmetic_of(there);
  EXPECT_LT(on_gpu, arithmetic_of(here));
  // it paid at 1 Gbit/s, so it does so up to a faster one
  EXPECT_GT(there["pays_up_to_bytes_per_s"].get<double>(), 1e9 / 8);
  const std::string few = "plan --workers 1 --seconds 0.01 --methods lion,dlion-vote ";
  expect_contains(pride(few + gpu).out, "It pays on links of up to ");
  EXPECT_EQ(pride("plan " + paper + "--device-memory 3TB/s").code, 2);
  EXPECT_EQ(pride("plan " + paper + "--device-operations 1e12").code, 2);
}

}  // namespace
}  // namespace pride::app::gpu_bench
