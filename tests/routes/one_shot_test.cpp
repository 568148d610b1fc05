// The one-shot route of signs against the sharded one: parameters bit for bit, bytes against the
// stated cost, errors, and the choice of `auto`.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sharded route, which tests/methods/oracle_test.cpp holds against scalar code; ties
// against the rule of docs/wire_format.md; costs against formulas written here.
#include <gtest/gtest.h>

#include <algorithm>

#include "codecs/frame.h"
#include "codecs/hash_keys.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/training.h"

namespace pride::one_shot_test {
namespace {

using testing::kTensors;
using testing::Training;
using testing::unused;
using Options = std::map<std::string, std::string>;

// Zero in two thirds of the embedding's blocks, a different selection on every rank.
float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  const bool hidden = tensor == 0 && mix64(index / 64, static_cast<std::uint64_t>(rank)) % 3 != 0;
  return hidden ? 0 : testing::gradient(rank, step, tensor, index);
}

struct Case {
  std::string method;
  Options options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.method; }

const std::vector<Case> kCases = {{"dlion-vote", {}},  {"dlion-vote", {{"tie", "zero"}}},
                                  {"dlion-avg", {}},   {"dlion-avg", {{"counts", "planes"}}},
                                  {"signum-vote", {}}, {"signum-avg", {}}};

class OneShot : public ::testing::TestWithParam<Case> {
 protected:
  Training run(int world, const std::string& route) const {
    Training run{.world = world, .steps = 4};
    run.options.method = GetParam().method;
    run.options.options = GetParam().options;
    run.options.options["route"] = route;
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = 5;
    run.unused = unused;
    run.grad = gradient;
    return run;
  }
};

// Parameters of the run, after checking that all ranks have them.
std::vector<float> result_of(const Training& run) {
  const auto ranks = testing::train(Layout(kTensors), run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
  return ranks[0].params;
}

// Buckets of both routes in one step: some are large, the last is small.
TEST_P(OneShot, MixesWithTheShardedRouteInAStep) {
  for (const int world : {3, 4, 8}) {
    Training mixed = run(world, "auto");
    mixed.options.bucket_coords = 1500;
    const std::vector<float> expected = result_of(run(world, "sharded"));
    for (const char* bytes : {"0", "300", "12500"}) {
      for (const bool overlap : {false, true}) {
        mixed.options.options["round_bytes"] = bytes;
        mixed.options.overlap = overlap;
        EXPECT_EQ(result_of(mixed), expected) << "N=" << world << ", round_bytes=" << bytes;
      }
    }
  }
}

TEST_P(OneShot, SendsItsCost) {
  for (const int world : {1, 2, 3, 8}) {
    for (const char* route : {"one-shot", "sharded", "auto"}) {
      for (const std::int64_t d : {1, 63, 1000, 7000}) {
        const Layout layout({{"w", {d}}, {"rows", {d, 3}}});
        Training some = run(world, route);
        some.unused = nullptr;
        some.options.bucket_coords = 512;
        const CostQuery query{
            .options = some.options.options, .world = world, .bucket_coords = 512};
        const Cost largest = largest_cost(some.options.method, layout, query);
        std::uint64_t most = 0;
        for (const auto& rank : testing::train(layout, some)) {
          SCOPED_TRACE(concat(route, " N=", world, " d=", d));
          EXPECT_TRUE(rank.cost.exact);
          EXPECT_EQ(rank.reports[0].bytes_sent, rank.cost.bytes());
          most = std::max(most, rank.cost.bytes());
        }
        EXPECT_EQ(largest.bytes(), most) << route << " N=" << world << " d=" << d;
      }
    }
  }
}

// --- NaN and Inf. -------------------------------------------------------------------------------

TEST_P(OneShot, NamesTheNonFiniteRankAsTheShardedRouteDoes) {
  for (const std::vector<int>& bad : {std::vector{0}, std::vector{2}, std::vector{2, 1}}) {
    Training one = run(3, "one-shot"), two = run(3, "sharded");
    one.options.bucket_coords = two.options.bucket_coords = 1000;
    const auto errors = testing::errors_with_nan(Layout(kTensors), one, bad);
    EXPECT_NE(errors[0].find(concat("'w1' on rank ", std::ranges::min(bad))), std::string::npos)
        << errors[0];
    EXPECT_EQ(errors, testing::errors_with_nan(Layout(kTensors), two, bad));
  }
}

INSTANTIATE_TEST_SUITE_P(All, OneShot, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.method;
  for (const auto& [key, value] : info.param.options) name += "_" + value;
  for (char& ch : name) ch = ch == '-' ? '_' : ch;
  return name;
});

// A tied vote of two ranks, coordinate by coordinate.
TEST(OneShotVote, TakesTheTieBitsOfTheDocument) {
  const Layout layout({{"a", {70}}, {"b", {500}}});
  Training run{.world = 2, .steps = 1};
  run.options.options = {{"route", "one-shot"}};
  run.options.groups = {{.lr = 1.0}};
  run.options.seed = 11;
  run.grad = [](int rank, std::int64_t, std::size_t, std::size_t) {
    return rank == 0 ? 1.0f : -1.0f;
  };
  for (const auto& rank : testing::train(layout, run)) {
    for (std::size_t t = 0; t < 2; ++t) {
      for (std::size_t i = 0; i < layout.tensors()[t].n; ++i) {
        const std::size_t c = layout.tensors()[t].offset + i;
        const bool plus = (tie_words(11, 0, 0).at(c / 64) >> (c % 64)) & 1;
        ASSERT_EQ(rank.params[c], testing::initial(t, i) - (plus ? 1.0f : -1.0f)) << c;
      }
    }
  }
}

// --- Costs and the choice. ----------------------------------------------------------------------

Cost cost_of(const std::string& method, std::int64_t d, int world, Options options) {
  return method_cost(method, Layout({{"w", {d}}}),
                     {.options = std::move(options), .world = world, .bucket_coords = 1 << 24});
}

TEST(OneShotVote, SendsAHeaderAWordOfUnusedBitsAndAllSignsToEachOther) {
  for (const int world : {2, 3, 8}) {
    const Cost cost = cost_of("dlion-vote", 1'000'000, world, {{"route", "one-shot"}});
    const auto others = static_cast<std::uint64_t>(world - 1);
    EXPECT_EQ(cost.bytes_up, others * (64 + 8 + 1'000'000 / 8));
    EXPECT_EQ(cost.bytes_down, 0u);
  }
}

// Two ranks send as many bits either way, and one frame less.
TEST(OneShotVote, SendsLessThanTheShardedRouteOnTwoRanks) {
  for (const std::int64_t d : {1, 1000, 10'000'000}) {
    const auto bytes = [&](const char* route) {
      return cost_of("dlion-vote", d, 2, {{"route", route}}).bytes();
    };
    EXPECT_LT(bytes("one-shot"), bytes("sharded")) << d;
    EXPECT_EQ(bytes("auto"), bytes("one-shot")) << d;
  }
}

std::string route_of(const std::string& method, std::int64_t d, int world, Options options = {}) {
  const auto routes =
      bucket_routes(method, Layout({{"w", {d}}}),
                    {.options = std::move(options), .world = world, .bucket_coords = 1 << 24});
  EXPECT_EQ(routes.size(), 1u);
  EXPECT_EQ(routes[0].rounds, world == 1 ? 0 : routes[0].name == "one-shot" ? 1 : 2);
  return routes[0].name;
}

TEST(RouteChoice, IsOneShotOnTwoRanksAndInSmallBuckets) {
  EXPECT_EQ(route_of("dlion-vote", 10'000'000, 1), "sharded") << "alone nothing is sent";
  EXPECT_EQ(route_of("dlion-vote", 10'000'000, 2), "one-shot");
  EXPECT_EQ(route_of("dlion-vote", 10'000'000, 3), "sharded");
  EXPECT_EQ(route_of("dlion-vote", 10'000'000, 3, {{"tie", "zero"}}), "one-shot") << "2 bits down";
  EXPECT_EQ(route_of("dlion-avg", 10'000'000, 2), "one-shot");
  EXPECT_EQ(route_of("dlion-avg", 10'000'000, 3), "one-shot") << "2 bits down";
  EXPECT_EQ(route_of("dlion-avg", 10'000'000, 4), "sharded");
  for (const int world : {3, 4, 8, 64}) {
    EXPECT_EQ(route_of("signum-vote", 64, world), "one-shot") << "N=" << world;
    EXPECT_EQ(route_of("signum-vote", 10'000'000, world), "sharded") << "N=" << world;
  }
  EXPECT_EQ(route_of("lion", 1000, 4), "sharded") << "no choice";
}

// Without frames the rule is: one shot if (N-1)(1 - 2/N) d/8 <= round_bytes.
TEST(RouteChoice, ChangesWhereARoundIsWorthTheBytes) {
  for (const int world : {3, 4, 8}) {
    const double each = (world - 1) * (1 - 2.0 / world) / 8;
    const auto d = static_cast<std::int64_t>(1e6 / each);
    const auto route = [&](double share) {
      return route_of("dlion-vote", static_cast<std::int64_t>(share * static_cast<double>(d)),
                      world, {{"round_bytes", "1000000"}});
    };
    EXPECT_EQ(route(0.99), "one-shot") << "N=" << world;
    EXPECT_EQ(route(1.02), "sharded") << "N=" << world;
  }
}

TEST(RouteChoice, IsWhatTheOptionSays) {
  for (const char* route : {"one-shot", "sharded"}) {
    for (const int world : {2, 8}) {
      EXPECT_EQ(route_of("dlion-vote", 100'000, world, {{"route", route}}), route);
      EXPECT_EQ(route_of("dlion-avg", 100'000, world, {{"route", route}}), route);
    }
  }
  run_world(4, [](Communicator& comm) {
    const Layout layout({{"w", {1'000'000}}, {"b", {100}}});
    OptimizerOptions options{.method = "dlion-vote", .bucket_coords = 500'000};
    EXPECT_EQ(Optimizer(comm, layout, options).routes(),
              (std::map<std::string, int>{{"sharded", 3}}));
    options.options = {{"route", "one-shot"}};
    EXPECT_EQ(Optimizer(comm, layout, options).routes(),
              (std::map<std::string, int>{{"one-shot", 3}}));
    EXPECT_EQ(Optimizer(comm, layout, {.method = "lion"}).routes(),
              (std::map<std::string, int>{{"sharded", 1}}));
    options = {.method = "lion", .options = {{"dense", "native"}}};
    EXPECT_EQ(Optimizer(comm, layout, options).routes(),
              (std::map<std::string, int>{{"native", 1}}));
  });
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

TEST(RouteChoice, RefusesWhatItDoesNotKnowAndOneShotWithNodes) {
  const Layout layout({{"w", {100}}});
  const auto cost = [&](Options options, int per_node = 0) {
    return error_of([&] {
      method_cost("dlion-vote", layout,
                  {.options = std::move(options), .world = 4, .ranks_per_node = per_node});
    });
  };
  EXPECT_NE(cost({{"route", "ring"}}).find("option route = 'ring'"), std::string::npos);
  EXPECT_NE(cost({{"round_bytes", "-1"}}).find("round_bytes"), std::string::npos);
  EXPECT_NE(cost({{"route", "one-shot"}}, 2).find("takes two shots"), std::string::npos);
  EXPECT_EQ(cost({{"route", "auto"}}, 2), "");
  EXPECT_EQ(cost({{"route", "sharded"}}, 2), "");
  EXPECT_EQ(cost({{"route", "one-shot"}}, 1), "") << "a rank a node";
  const auto routes = bucket_routes("dlion-vote", layout, {.world = 4, .ranks_per_node = 2});
  EXPECT_EQ(routes.at(0).name, "hierarchical");
  EXPECT_EQ(routes.at(0).rounds, 4);
}

// With nodes of one rank, or one node.
TEST(OneShotVote, CountsWhatStaysOnTheNode) {
  const Layout layout({{"w", {6400}}});
  const auto local = [&](int per_node) {
    return method_cost(
        "dlion-vote", layout,
        {.options = {{"route", "one-shot"}}, .world = 4, .ranks_per_node = per_node});
  };
  EXPECT_EQ(local(1).bytes_local, 0u);
  EXPECT_EQ(local(4).bytes_local, 3 * (64 + 8 + 800u));
  EXPECT_EQ(local(4).bytes_off_node(), 0u);
}

// A state does not depend on the route.
TEST(RouteChoice, MayBeAnotherWhenAStateIsLoaded) {
  const Layout layout({{"w", {300}}});
  run_world(3, [&](Communicator& comm) {
    FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
    Optimizer first(comm, layout, {.options = {{"route", "one-shot"}, {"round_bytes", "7"}}});
    first.step(params.span(), grads.span());
    const StateDict state = first.save();
    EXPECT_EQ(state.scalars.at("options"),
              "momentum_dtype=float32 result=majority signs=exact tie=hash");
    Optimizer second(comm, layout, {.options = {{"route", "sharded"}}});
    second.load(state);
    EXPECT_EQ(second.steps_done(), 1);
    Optimizer other(comm, layout, {.options = {{"tie", "zero"}}});
    EXPECT_THROW(other.load(state), InvalidArgument);
  });
}

// A rank with another choice is detected before the first step.
TEST(RouteChoice, MustBeTheSameOnAllRanks) {
  const auto error = error_of([] {
    run_world(3, [](Communicator& comm) {
      const char* route = comm.rank() == 2 ? "sharded" : "one-shot";
      Optimizer(comm, Layout({{"w", {100}}}), {.options = {{"route", route}}});
    });
  });
  EXPECT_NE(error.find("method options"), std::string::npos) << error;
  EXPECT_NE(error.find("rank(s) 2"), std::string::npos) << error;
}

}  // namespace
}  // namespace pride::one_shot_test
