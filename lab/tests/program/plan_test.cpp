// `pride plan` over a model that is measured.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/run_here.h"
#include "train_names.h"

namespace pride::app {
namespace {

using nlohmann::json;
using namespace test;

Outcome pride(const std::string& arguments) { return run_here(words(arguments)); }

double bytes_of_votes(const json& plan) {
  for (const json& row : plan["methods"]) {
    if (row["name"] == "dlion-vote") return row["bytes_sent"];
  }
  ADD_FAILURE() << "no row dlion-vote in " << plan;
  return 0;
}

// several ranks on the cores of one machine would hide the network's time behind their own
TEST(PlanProgram, MeasuresOneRankForANetworkOnPaperAndSaysWhatItMeasured) {
  const std::string model = "plan --task lm --layers 1 --width 32 --batch 1 --seconds 0.01 ";
  const std::string paper = model + "--bandwidth 100Mbps --latency 50us --methods lion,dlion-vote ";
  const json p = json::parse(pride(paper + "--json").out);
  EXPECT_EQ(p["workers"], 4);
  EXPECT_EQ(p["compute_measured_on_ranks"], 1);
  EXPECT_GE(p["compute_measured_on_cores"], 1);
  EXPECT_EQ(p["cores_per_rank"], p["compute_measured_on_cores"]);
  const std::string own = pride(paper).out;
  expect_contains(own, "(measured on 1 rank with ");
  EXPECT_EQ(own.find("Forward and backward were measured on"), std::string::npos) << own;
  const std::string shared =
      pride(model + "--workers 16 --bandwidth 100Mbps --latency 1ms --methods lion").out;
  expect_contains(shared, "Forward and backward were measured on 16 ranks that share ");
}

TEST(PlanProgram, AddsUpTheBytesOfGroups) {
  const auto with = [](const std::string& what, const std::string& groups) {
    return run_here(
        plus(words("plan --json --seconds 0.01 --backward 1ms ", what), {"--groups", groups}));
  };
  const std::string model =
      "--task lm --layers 1 --heads 2 --width 32 --bandwidth 1Gbit --latency 50us";
  const Outcome plain = pride("plan --json --workers 1 --seconds 0.01 --backward 1ms " + model);
  const double votes = bytes_of_votes(json_of(plain));
  const double both = bytes_of_votes(json_of(with(model, "*.mlp.*: adamw")));
  // 4 bytes up and 4 down of 3/4 of these tensors, in place of votes; a shard may be larger
  EXPECT_NEAR(both - votes, 2 * 3 / 4.0 * 4 * (2 * 32 * 128 + 128 + 32), 10'000);
  const Outcome unknown = with(model, "mlp.*: adamw");
  EXPECT_EQ(unknown.code, 2);
  expect_contains(unknown.err, "--groups = 'mlp.*': no tensor is named");
  expect_contains(with("--params 1000", "*.mlp.*: adamw").err, "--groups with --params");
}

}  // namespace
}  // namespace pride::app
