// The one-shot route of signs against the sharded one: parameters bit for bit, bytes against the
// stated cost, and the choice of `auto`.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sharded route, which tests/methods/oracle_test.cpp compares with scalar code.
#include <gtest/gtest.h>

#include <algorithm>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/sign_cases.h"
#include "support/texts.h"

namespace pride::one_shot_test {
namespace {

using testing::kSignCases;
using testing::kTensors;
using testing::SignCase;
using testing::Training;
using testing::unused;
using Options = std::map<std::string, std::string>;

class OneShot : public ::testing::TestWithParam<SignCase> {
 protected:
  Training run(int world, const std::string& route) const {
    Training run{.world = world, .steps = 4};
    run.options.method = GetParam().method;
    run.options.options = GetParam().options;
    run.options.options["route"] = route;
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = 5;
    run.unused = unused;
    run.grad = testing::sparse_gradient;
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
        mixed.options.options["bandwidth_delay_bytes"] = bytes;
        mixed.options.overlap = overlap;
        EXPECT_EQ(result_of(mixed), expected)
            << "N=" << world << ", bandwidth_delay_bytes=" << bytes;
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

INSTANTIATE_TEST_SUITE_P(All, OneShot, ::testing::ValuesIn(kSignCases), testing::sign_case_name);

// --- Costs and the choice. ----------------------------------------------------------------------

std::string route_of(const std::string& method, std::int64_t d, int world, Options options = {}) {
  const auto routes =
      bucket_routes(method, Layout({{"w", {d}}}),
                    {.options = std::move(options), .world = world, .bucket_coords = 1 << 24});
  EXPECT_EQ(routes.size(), 1u);
  EXPECT_EQ(routes[0].phases, world == 1 ? 0 : routes[0].name == "one-shot" ? 1 : 2);
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

// Without frames the rule is: one shot if (N-1)(1 - 2/N) d/8 <= bandwidth_delay_bytes.
TEST(RouteChoice, ChangesWhereARoundIsWorthTheBytes) {
  for (const int world : {3, 4, 8}) {
    const double each = (world - 1) * (1 - 2.0 / world) / 8;
    const auto d = static_cast<std::int64_t>(1e6 / each);
    const auto route = [&](double share) {
      return route_of("dlion-vote", static_cast<std::int64_t>(share * static_cast<double>(d)),
                      world, {{"bandwidth_delay_bytes", "1000000"}});
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

TEST(RouteChoice, RefusesWhatItDoesNotKnowAndOneShotWithNodes) {
  const Layout layout({{"w", {100}}});
  const auto cost = [&](Options options, int per_node = 0) {
    return texts::error_of<InvalidArgument>([&] {
      method_cost("dlion-vote", layout,
                  {.options = std::move(options), .world = 4, .ranks_per_node = per_node});
    });
  };
  EXPECT_NE(cost({{"route", "ring"}}).find("option route = 'ring'"), std::string::npos);
  EXPECT_NE(cost({{"bandwidth_delay_bytes", "-1"}}).find("bandwidth_delay_bytes"),
            std::string::npos);
  EXPECT_NE(cost({{"route", "one-shot"}}, 2).find("the hierarchical route is two-shot"),
            std::string::npos);
  EXPECT_EQ(cost({{"route", "auto"}}, 2), "");
  EXPECT_EQ(cost({{"route", "sharded"}}, 2), "");
  EXPECT_EQ(cost({{"route", "one-shot"}}, 1), "") << "a rank a node";
  const auto routes = bucket_routes("dlion-vote", layout, {.world = 4, .ranks_per_node = 2});
  EXPECT_EQ(routes.at(0).name, "hierarchical");
  EXPECT_EQ(routes.at(0).phases, 4);
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
    Optimizer first(comm, layout,
                    {.options = {{"route", "one-shot"}, {"bandwidth_delay_bytes", "7"}}});
    first.step(params.span(), grads.span());
    const StateDict state = first.save();
    EXPECT_EQ(state.scalars.at("options"), "cautious_decay=no momentum_dtype=float32 tie=hash");
    Optimizer second(comm, layout, {.options = {{"route", "sharded"}}});
    second.load(state);
    EXPECT_EQ(second.steps_done(), 1);
    Optimizer other(comm, layout, {.options = {{"tie", "zero"}}});
    EXPECT_THROW(other.load(state), InvalidArgument);
  });
}

}  // namespace
}  // namespace pride::one_shot_test
