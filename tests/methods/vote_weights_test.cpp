// Votes with weights: against a world with w ranks instead of one of weight w, and against the
// scalar oracle, over all routes; and their bytes against the stated cost.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/methods_ref.h; and the same methods without weights.
#include "methods/vote_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "codecs/counts.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "reference/hash_bits_ref.h"
#include "reference/methods_ref.h"
#include "support/sign_cases.h"

namespace pride::vote_weights_test {
namespace {

using testing::kTensors;
using testing::RankResult;
using testing::Training;
using testing::unused;
using Weights = std::vector<int>;
using Options = std::map<std::string, std::string>;

constexpr std::uint64_t kSeed = 5;

class VoteWeights : public ::testing::TestWithParam<testing::SignCase> {
 protected:
  Training run(const Weights& weights, const std::string& route = "auto") const {
    Training run{.world = static_cast<int>(weights.size()), .steps = 4};
    run.options.method = GetParam().method;
    run.options.options = GetParam().options;
    run.options.options["route"] = route;
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = kSeed;
    run.weights = weights;
    run.unused = unused;
    return run;
  }
  bool average() const { return GetParam().method.ends_with("avg"); }
};

std::vector<RankResult> trained(const Training& run) {
  const Layout layout(kTensors);
  auto ranks = testing::train(layout, run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash) << "replicas differ";
  return ranks;
}

std::string text_of(const Weights& weights) {
  std::string text = "weights";
  for (const int w : weights) text += concat(" ", w);
  return text;
}

// --- A rank of weight w is w ranks. --------------------------------------------------------------

// The same run with w ranks in the place of each of weight w, all with its gradients. Zeros take
// bits by rank: there are none.
Training with_clones(Training run) {
  std::vector<int> original;  // of each rank
  for (std::size_t r = 0; r < run.weights.size(); ++r) {
    original.insert(original.end(), static_cast<std::size_t>(run.weights[r]), static_cast<int>(r));
  }
  run.world = static_cast<int>(original.size());
  run.weights.clear();
  const auto of = [original](int rank) { return original[static_cast<std::size_t>(rank)]; };
  run.unused = [of](int rank, std::int64_t step, std::size_t t) {
    return unused(of(rank), step, t);
  };
  run.grad = [of, grad = run.grad](int rank, std::int64_t step, std::size_t t, std::size_t i) {
    return grad(of(rank), step, t, i);
  };
  return run;
}

float nonzero_gradient(int rank, std::int64_t step, std::size_t t, std::size_t i) {
  const float g = testing::gradient(rank, step, t, i);
  return g == 0 ? 0.5f : g;
}

TEST_P(VoteWeights, ARankOfWeightWIsWRanks) {
  for (const Weights& weights : std::vector<Weights>{
           {5}, {1, 1}, {2, 1}, {1, 6}, {1, 2, 3}, {4, 1, 2}, {5, 1, 1, 2, 3}, {1, 1, 1, 1, 3}}) {
    for (const char* route : {"sharded", "one-shot"}) {
      Training weighted = run(weights, route);
      weighted.grad = nonzero_gradient;
      EXPECT_EQ(trained(weighted)[0].hash, trained(with_clones(weighted))[0].hash)
          << text_of(weights) << ' ' << route;
    }
  }
}

TEST_P(VoteWeights, AreAgreedOnAgainWhenTensorsAreAdded) {
  const Weights weights = {1, 3, 2};
  const auto hash_of = [&](Training run) {
    std::uint64_t hash = 0;
    run_world(run.world, [&](Communicator& comm) {
      OptimizerOptions options = run.options;
      if (!run.weights.empty()) {
        options.vote_weight = run.weights[static_cast<std::size_t>(comm.rank())];
      }
      Optimizer optimizer(comm, Layout({{"a", {200}}}), options);
      const auto step = [&](std::int64_t number) {
        FlatBuffer x(optimizer.layout().flat_size()), g(x.size());
        testing::fill(optimizer.layout(), g, [&](std::size_t t, std::size_t i) {
          return run.grad(comm.rank(), number, t, i);
        });
        optimizer.step(x.span(), g.span());
        return param_hash(optimizer.layout(), x.span());
      };
      step(0);
      optimizer.add({{"b", {300}}});
      const std::uint64_t mine = step(1);
      if (comm.rank() == 0) hash = mine;
    });
    return hash;
  };
  Training weighted = run(weights);
  weighted.grad = nonzero_gradient;
  EXPECT_EQ(hash_of(weighted), hash_of(with_clones(weighted)));
}

// --- The oracle, with zeros, and weights up to the largest. --------------------------------------

void expect_oracle(const Training& run, const std::string& tie) {
  const Layout layout(kTensors);
  const auto ranks = trained(run);
  const std::vector<std::int64_t> weights(run.weights.begin(), run.weights.end());
  const bool signum = run.options.method.starts_with("signum");
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    const reference::Hyper hyper{.beta1 = signum ? 0.99 : 0.9, .weight_decay = 0.1};
    const reference::Oracle oracle(run.options.method, run.world, testing::initial_of(layout, t),
                                   hyper, slot.offset, tie == "zero", kSeed, weights);
    ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "") << text_of(run.weights);
  }
}

// The second list has more votes than counts can hold.
const std::vector<Weights> kWeights = {{9},
                                       {65534, 1},
                                       {1, 2},
                                       {60000, 3, 5000},
                                       {2, 2, 3},
                                       {1, 65528, 1, 2, 3},
                                       {3, 4, 5, 6, 7, 8, 9, 10}};
const std::vector<Weights> kManyVotes = {
    {65535, 65534}, {65535, 32768, 32767}, {65535, 1, 65535, 2, 65534}};

TEST_P(VoteWeights, AgreeWithTheOracleBitForBit) {
  std::vector<Weights> all = kWeights;
  if (!average()) all.insert(all.end(), kManyVotes.begin(), kManyVotes.end());
  const auto tie = GetParam().options.find("tie");
  for (const Weights& weights : all) {
    for (const char* route : {"sharded", "one-shot"}) {
      expect_oracle(run(weights, route), tie == GetParam().options.end() ? "hash" : tie->second);
    }
  }
}

// Coordinates of a bucket, and overlap.
constexpr std::pair<std::size_t, bool> kSchedules[] = {
    {64, false}, {1000, true}, {std::size_t{1} << 20, false}};

TEST_P(VoteWeights, GiveTheSameBitsByEveryRouteAndBucketSize) {
  for (const Weights& weights :
       std::vector<Weights>{{4, 1, 1, 7}, {1, 1, 3, 3}, {5, 6, 7, 8, 9, 65000}}) {
    const Training flat = run(weights, "sharded");
    const std::uint64_t expected = trained(flat)[0].hash;
    const int world = flat.world;
    std::vector<int> dealt_out;
    for (int r = 0; r < world; ++r) dealt_out.push_back(r % 2);
    for (const auto& [coords, overlap] : kSchedules) {
      Training other = run(weights, "one-shot");
      other.options.bucket_coords = coords;
      other.options.overlap = overlap;
      EXPECT_EQ(trained(other)[0].hash, expected) << text_of(weights) << " one-shot " << coords;
      other.options.options["route"] = "auto";
      EXPECT_EQ(trained(other)[0].hash, expected) << text_of(weights) << " auto " << coords;
      for (const Nodes& nodes : {Nodes::of_size(world, 2), Nodes(dealt_out)}) {
        other.options.nodes = nodes;
        EXPECT_EQ(trained(other)[0].hash, expected) << text_of(weights) << " nodes " << coords;
      }
    }
  }
}

// --- Equal weights, and a common factor. ---------------------------------------------------------

TEST_P(VoteWeights, ThatAreEqualChangeNeitherBitsNorBytes) {
  for (const int world : {1, 2, 3, 4}) {
    Training plain = run(Weights(static_cast<std::size_t>(world), 1));
    plain.weights.clear();
    const auto expected = trained(plain);
    for (const int weight : {1, 7, 65535}) {
      const auto got = trained(run(Weights(static_cast<std::size_t>(world), weight)));
      EXPECT_EQ(got[0].hash, expected[0].hash) << weight;
      EXPECT_EQ(got[0].reports[1].bytes_sent, expected[0].reports[1].bytes_sent) << weight;
      EXPECT_EQ(got[0].reports[1].messages_sent, expected[0].reports[1].messages_sent) << weight;
    }
  }
}

TEST_P(VoteWeights, DoNotDependOnACommonFactor) {
  const auto small = trained(run({3, 1, 2})), large = trained(run({30000, 10000, 20000}));
  EXPECT_EQ(small[0].hash, large[0].hash);
  EXPECT_EQ(small[0].reports[1].bytes_sent, large[0].reports[1].bytes_sent);
}

// --- Bytes. --------------------------------------------------------------------------------------

TEST_P(VoteWeights, SendTheirCost) {
  const Layout layout({{"w", {1000}}, {"rows", {63, 30}}});
  for (const Weights& weights : std::vector<Weights>{{2, 1}, {7, 1, 2}, {40, 1, 1, 999}}) {
    for (const int per_node : {0, 2}) {
      if (per_node > 0 && weights.size() != 4) continue;
      Training training = run(weights);
      training.unused = nullptr;
      training.options.bucket_coords = 512;
      if (per_node > 0) training.options.nodes = Nodes::of_size(4, per_node);
      const auto ranks = testing::train(layout, training);
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        const Cost cost = method_cost(GetParam().method, layout,
                                      {.options = training.options.options,
                                       .world = training.world,
                                       .rank = static_cast<int>(r),
                                       .bucket_coords = 512,
                                       .ranks_per_node = per_node,
                                       .vote_weights = weights});
        EXPECT_EQ(ranks[r].reports[1].bytes_sent, ranks[r].cost.bytes()) << text_of(weights);
        EXPECT_EQ(ranks[r].cost.bytes(), cost.bytes()) << text_of(weights);
        EXPECT_TRUE(cost.exact);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, VoteWeights, ::testing::ValuesIn(testing::kSignCases),
                         testing::sign_case_name);

// A vote has the bytes of one without weights; counts have the bits of the sum of the weights.
TEST(VoteWeightsCost, IsThatOfTheSumOfWeights) {
  const Layout layout({{"w", {1'000'000}}});
  const auto cost = [&](const char* method, Weights weights) {
    return method_cost(method, layout,
                       {.options = {{"route", "sharded"}}, .vote_weights = std::move(weights)});
  };
  EXPECT_EQ(cost("dlion-vote", {}).bytes(), cost("dlion-vote", {1, 2, 3, 60000}).bytes());
  EXPECT_EQ(cost("dlion-avg", {}).bytes(), cost("dlion-avg", {7, 7, 7, 7}).bytes());
  for (const Weights& weights : std::vector<Weights>{{1, 2, 3, 4}, {1, 1, 1, 65532}}) {
    const int votes = std::accumulate(weights.begin(), weights.end(), 0);
    const double bits = count_bits(votes, CountForm::kPacked);
    const double bytes = 3.0 / 4 * 1e6 * bits / 8;
    EXPECT_NEAR(static_cast<double>(cost("dlion-avg", weights).bytes_down) / bytes, 1, 0.01);
  }
  EXPECT_THROW(cost("dlion-vote", {1, 2}), InvalidArgument);
}

// --- Ties. ---------------------------------------------------------------------------------------

// Moves of a step in which rank 0 pushes down and all others up, in units of the learning rate.
std::vector<float> moves_against_rank_0(const Weights& weights, const Options& options) {
  const Layout layout({{"w", {500}}});
  Training run{.world = static_cast<int>(weights.size()), .steps = 1};
  run.options.options = options;
  run.options.groups = {{.lr = 1.0}};
  run.options.seed = kSeed;
  run.weights = weights;
  run.grad = [](int rank, std::int64_t, std::size_t, std::size_t) {
    return rank == 0 ? 1.0f : -1.0f;
  };
  auto moves = testing::train(layout, run)[0].params;
  for (std::size_t i = 0; i < 500; ++i) moves[i] = std::round(moves[i] - testing::initial(0, i));
  moves.resize(500);
  return moves;
}

TEST(VoteWeightsTies, FollowTheSumOfWeights) {
  for (const char* route : {"sharded", "one-shot"}) {
    const Options hash = {{"route", route}}, zero = {{"route", route}, {"tie", "zero"}};
    const std::vector<float> up(500, 1), down(500, -1), none(500, 0);
    // two ranks cannot tie if their weights differ, three can
    EXPECT_EQ(moves_against_rank_0({3, 2}, hash), down);
    EXPECT_EQ(moves_against_rank_0({2, 3}, zero), up);
    EXPECT_EQ(moves_against_rank_0({2, 1, 1}, zero), none);
    EXPECT_EQ(moves_against_rank_0({3, 1, 1}, zero), down);
    for (const Weights& weights : {Weights{2, 1, 1}, {1, 1}}) {
      const auto tied = moves_against_rank_0(weights, hash);
      for (std::size_t i = 0; i < 500; ++i) {
        const bool plus = reference::tie_of(testing::initial(0, i), 1, 0);
        ASSERT_EQ(tied[i], plus ? -1 : 1) << i;
      }
    }
  }
}

// --- States know no weights. ---------------------------------------------------------------------

TEST(VoteWeightsState, GoesOnWithOtherWeightsAndOtherRanks) {
  const Layout layout({{"w", {300}}});
  std::vector<StateDict> saved(2);
  const auto step = [&](Communicator& comm, Optimizer& optimizer) {
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), optimizer.steps_done(), t, i);
    });
    optimizer.step(x.span(), g.span());
    return param_hash(layout, x.span());
  };
  std::uint64_t other = 0;
  run_world(2, [&](Communicator& comm) {
    Optimizer first(comm, layout, {.vote_weight = 1 + 4 * comm.rank()});
    step(comm, first);
    const StateDict state = first.save();
    saved[static_cast<std::size_t>(comm.rank())] = state;
    EXPECT_FALSE(state.scalars.contains("vote_weight"));
    Optimizer second(comm, layout, {.vote_weight = 3});
    second.load(state);
    Optimizer third(comm, layout, {});
    third.load(state);
    const std::uint64_t hash = step(comm, second);
    EXPECT_EQ(hash, step(comm, third));
    if (comm.rank() == 0) other = hash;
  });
  run_world(3, [&](Communicator& comm) {
    Optimizer more(comm, layout, {.vote_weight = 1 + comm.rank()});
    more.load(saved);
    EXPECT_EQ(more.steps_done(), 1);
    EXPECT_NE(step(comm, more), other);
  });
}

}  // namespace
}  // namespace pride::vote_weights_test
