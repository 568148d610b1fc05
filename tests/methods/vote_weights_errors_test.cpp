// Refused vote weights: at the start, and in frames.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "codecs/counts.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/edited_frame.h"

namespace pride::vote_weights_errors_test {
namespace {

using testing::error_with;
using testing::put;
using testing::Training;
using Weights = std::vector<int>;

bool has_weights(const std::string& method) {
  return method.starts_with("dlion") || method.starts_with("signum") || method == "local-vote" ||
         method == "local-muon" || method == "turn-muon";
}

std::vector<std::string> errors_of(const std::string& method, const Weights& weights,
                                   const Nodes& nodes = {}) {
  return testing::errors_of<InvalidArgument>(
      static_cast<int>(weights.size()), [&](Communicator& comm) {
        const Optimizer optimizer(comm, Layout({{"w", {64}}}),
                                  {.method = method,
                                   .nodes = nodes,
                                   .vote_weight = weights[static_cast<std::size_t>(comm.rank())]});
      });
}

void expect_all_contain(const std::vector<std::string>& texts, const std::string& part) {
  for (std::size_t r = 0; r < texts.size(); ++r) {
    EXPECT_NE(texts[r].find(part), std::string::npos) << "rank " << r << ": '" << texts[r] << "'";
  }
}

TEST(VoteWeightsErrors, NameTheRankWhoseWeightIsOutOfRange) {
  for (const int weight : {0, -1, 65536, 70000}) {
    expect_all_contain(errors_of("dlion-vote", {1, weight, 1}),
                       concat("dlion-vote: vote weight ", weight, " of rank 1, must be from 1"));
    expect_all_contain(errors_of("lion", {weight}), concat("vote weight ", weight, " of rank 0"));
  }
}

TEST(VoteWeightsErrors, NameMethodAndWeightsWhereVotesHaveNone) {
  std::string with_weights;
  for (const std::string& method : method_names()) {
    if (has_weights(method)) {
      expect_all_contain(errors_of(method, {3, 5, 5}), "");
      EXPECT_EQ(errors_of(method, {3, 5, 5})[0], "") << method;
      with_weights += (with_weights.empty() ? "" : ", ") + method;
    } else {
      expect_all_contain(errors_of(method, {3, 5, 5}), method + ": every rank has one vote");
      expect_all_contain(errors_of(method, {3, 5, 5}), "vote weights are 3, 5, 5");
    }
    EXPECT_EQ(errors_of(method, {3, 3, 3})[1], "") << method;
  }
  expect_all_contain(errors_of("lion", {3, 5, 5}), "have weights (" + with_weights + ")");
}

TEST(VoteWeightsErrors, NameTheSumThatCountsCannotHold) {
  expect_all_contain(errors_of("dlion-avg", {65535, 1}), "have the sum 65536, at most 65535");
  expect_all_contain(errors_of("signum-avg", {65535, 32768, 3}), "at most 65535");
  EXPECT_EQ(errors_of("dlion-avg", {65534, 1})[0], "");
  EXPECT_EQ(errors_of("dlion-avg", {60000, 30000})[0], "") << "2 and 1 over their common divisor";
  EXPECT_EQ(errors_of("dlion-vote", {65535, 65534})[0], "");
  const Nodes nodes = Nodes::of_size(4, 2);
  expect_all_contain(errors_of("dlion-vote", {1, 1, 65535, 1}, nodes),
                     "on the node of rank 2 have the sum 65536, at most 65535");
  EXPECT_EQ(errors_of("dlion-vote", {1, 65534, 65533, 2}, nodes)[0], "");
}

TEST(VoteWeightsErrors, DoNotHideASettingThatDiffers) {
  const auto texts = testing::errors_of<InvalidArgument>(3, [](Communicator& comm) {
    OptimizerOptions options{.vote_weight = 1 + comm.rank()};
    if (comm.rank() == 2) options.seed = 1;
    const Optimizer optimizer(comm, Layout({{"w", {64}}}), options);
  });
  expect_all_contain(texts, "the seed of rank(s) 2 and of rank 0 differ");
}

Training small_run(const std::string& method, const std::string& route, const Weights& weights) {
  Training run{.world = static_cast<int>(weights.size())};
  run.options.method = method;
  run.options.options = {{"route", route}};
  run.weights = weights;
  return run;
}

TEST(VoteWeightsFrames, WithAnotherWeightAreRefusedByTheSendersName) {
  const Weights weights = {2, 6, 10};  // 1, 3, 5
  for (const Codec codec : {Codec::kSign, Codec::kVote}) {
    const Training run = small_run("dlion-vote", "sharded", weights);
    EXPECT_EQ(error_with(run, codec, 1, put(14, 2, 3)), "");
    EXPECT_NE(error_with(run, codec, 1, put(14, 2, 1))
                  .find("the frame from rank 1 has vote weight 1, this rank expects 3"),
              std::string::npos);
  }
  EXPECT_NE(
      error_with(small_run("dlion-vote", "one-shot", weights), Codec::kAllSigns, 2, put(14, 2, 10))
          .find("the frame from rank 2 has vote weight 10, this rank expects 5"),
      std::string::npos);
}

// Users are counted with their weights: this rank's own must be among them.
TEST(VoteWeightsFrames, ThatCountAnotherNumberOfVotesAreRefused) {
  const Training run = small_run("dlion-avg", "sharded", {5, 2, 3});
  const Codec codec = count_frames(10, CountForm::kPacked).codec;
  EXPECT_EQ(error_with(run, codec, 1, put(kHeaderBytes, 2, 10)), "");
  EXPECT_NE(error_with(run, codec, 1, put(kHeaderBytes, 2, 11)).find("counts 11 of 10 ranks"),
            std::string::npos);
  EXPECT_NE(error_with(run, codec, 1, put(kHeaderBytes, 2, 4))
                .find("counts 4 of 10 ranks as users of tensor 0, which this rank uses"),
            std::string::npos);
  Training without = run;
  without.unused = [](int rank, std::int64_t, std::size_t) { return rank == 0; };
  EXPECT_NE(error_with(without, codec, 1, put(kHeaderBytes, 2, 6))
                .find("counts 6 of 10 ranks as users of tensor 0, which this rank does not use"),
            std::string::npos);
}

// Partial counts have the form of the node with most votes, and no more votes than their own.
TEST(VoteWeightsFrames, OfANodeHoldItsOwnVotes) {
  Training run = small_run("dlion-vote", "auto", {5, 1, 1, 1});
  run.options.nodes = Nodes::of_size(4, 2);
  const Codec codec = count_frames(6, CountForm::kPacked).codec;
  EXPECT_EQ(error_with(run, codec, 2, put(14, 2, 2)), "");
  EXPECT_NE(error_with(run, codec, 2, put(14, 2, 6))
                .find("the frame from rank 2 has vote weight 6, this rank expects 2"),
            std::string::npos);
  EXPECT_NE(error_with(run, codec, 2, put(kHeaderBytes, 2, 3))
                .find("the frame from rank 2 counts 3 of 2 ranks as users of tensor 0"),
            std::string::npos);
}

}  // namespace
}  // namespace pride::vote_weights_errors_test
