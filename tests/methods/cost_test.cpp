// Counted bytes against a method's stated cost, frames and padding included.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::cost_test {
namespace {

using testing::Training;

// A cost stated as a bound must hold; no cost may be far off on these gradients.
void expect_cost(const Cost& cost, std::uint64_t counted) {
  if (cost.exact) {
    ASSERT_EQ(counted, cost.bytes());
    ASSERT_TRUE(cost.bound);
  } else {
    if (cost.bound) {
      ASSERT_LE(counted, cost.bytes());
    }
    ASSERT_LE(counted, 4 * cost.bytes());
    ASSERT_GE(4 * counted, cost.bytes());
  }
}

class MethodCost : public ::testing::TestWithParam<std::string> {};

TEST_P(MethodCost, EqualsCountedBytesOnEveryRank) {
  for (const int world : {1, 2, 3, 4, 8, 32}) {
    for (const std::int64_t d : {std::int64_t{1}, std::int64_t{63}, std::int64_t{1000}}) {
      const Layout layout({{"w", {d}}, {"rows", {d, 3}}});
      Training run{.world = world, .steps = 2};
      testing::set_method(run.options, GetParam());
      run.options.bucket_coords = 512;
      for (const auto& rank : testing::train(layout, run)) {
        for (const StepReport& report : rank.reports) {
          SCOPED_TRACE(concat(GetParam(), " N=", world, " d=", d));
          expect_cost(rank.costs[static_cast<std::size_t>(report.step)], report.bytes_sent);
        }
        if (world == 1) {
          ASSERT_EQ(rank.cost.bytes(), 0u);
        }
      }
    }
  }
}

// method_cost() needs no world, and equals the cost of an optimizer in the world.
TEST_P(MethodCost, IsKnownWithoutAWorld) {
  const Layout layout({{"w", {1000}}, {"rows", {50, 3}}});
  for (const int world : {1, 3, 4}) {
    Training run{.world = world, .steps = 1};
    run.options.method = GetParam();
    run.options.bucket_coords = 300;
    const auto ranks = testing::train(layout, run);
    for (int rank = 0; rank < world; ++rank) {
      const Cost cost =
          method_cost(GetParam(), layout, {.world = world, .rank = rank, .bucket_coords = 300});
      const Cost& want = ranks[static_cast<std::size_t>(rank)].cost;
      EXPECT_EQ(cost.bytes_up, want.bytes_up) << "N=" << world << " rank " << rank;
      EXPECT_EQ(cost.bytes_down, want.bytes_down) << "N=" << world << " rank " << rank;
      EXPECT_EQ(cost.exact, want.exact);
    }
  }
}

// largest_cost() computes one rank of each kind; here it is compared with all ranks.
TEST_P(MethodCost, LargestIsThatOfTheRankWithMost) {
  const Layout layout({{"w", {20'000}}, {"rows", {50, 3}}, {"bias", {70}}});
  for (const int world : {1, 2, 3, 7, 40}) {
    for (const std::size_t coords : {std::size_t{300}, std::size_t{8192}, std::size_t{1} << 20}) {
      CostQuery query{.world = world, .step = std::int64_t{1} << 40, .bucket_coords = coords};
      const Cost largest = largest_cost(GetParam(), layout, query);
      std::uint64_t most = 0;
      for (query.rank = 0; query.rank < world; ++query.rank) {
        most = std::max(most, method_cost(GetParam(), layout, query).bytes());
      }
      EXPECT_EQ(largest.bytes(), most) << "N=" << world << ", buckets of " << coords;
    }
  }
}

// Where slices of a step go round the ranks, the rank with most changes from step to step.
TEST_P(MethodCost, LargestIsThatOfTheRankWithMostInEveryStep) {
  const Layout layout({{"w", {1000}}});
  for (std::int64_t step = 0; step < 9; ++step) {
    CostQuery query{.world = 3, .step = step, .bucket_coords = 1 << 14};
    const Cost largest = largest_cost(GetParam(), layout, query);
    std::uint64_t most = 0;
    for (query.rank = 0; query.rank < query.world; ++query.rank) {
      most = std::max(most, method_cost(GetParam(), layout, query).bytes());
    }
    EXPECT_EQ(largest.bytes(), most) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MethodCost, ::testing::ValuesIn(method_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& ch : name) ch = ch == '-' ? '_' : ch;
                           return name;
                         });

// The formulas of docs/methods.md, from the paper's bits alone, hold within the frames' overhead:
// of the second step, in which a dense start may be over, and on average over the ranks, whose
// shards differ by a block.
TEST(MethodCost, ApproachesThePapersBits) {
  const double d = 1'000'000;
  const Layout layout({{"w", {1'000'000}}});
  for (const std::string& name : method_names()) {
    for (const int world : {2, 4, 8}) {
      CostQuery query{.world = world, .step = 1};
      if (name == "onebit-adam") query.options = {{"freeze_steps", "1"}};
      const auto info = method_info(name, world);
      for (const MethodOption& option : info.options) {
        // on two ranks one shot of signs sends less
        if (option.name == "bandwidth_delay_bytes") query.options = {{"route", "sharded"}};
      }
      if (info.period > 1) query.options.merge(testing::in_every_step(name));
      const double bits = (info.bits_up + info.bits_down) * static_cast<double>(info.period);
      const double payload = (world - 1.0) / world * d / 8 * bits;
      // headers are at most a hundredth of a vote's payload
      const double headers = (world - 1.0) / world * d / 8 * std::max(bits, 2.0) * 0.01;
      double cost = 0;
      for (query.rank = 0; query.rank < world; ++query.rank) {
        cost += static_cast<double>(method_cost(name, layout, query).bytes()) / world;
      }
      EXPECT_GE(cost, payload * (info.exact_cost ? 0.999 : 0.5)) << name << " N=" << world;
      EXPECT_LE(cost, info.exact_cost ? payload + headers : 2 * payload) << name << " N=" << world;
    }
  }
}

// The headline: with 10 million parameters the vote sends 1/32 of the bytes of a ring of fp32.
TEST(DistributedLionVote, SendsOneThirtySecondOfAnFp32Ring) {
  const double d = 10'000'000;
  const Layout layout({{"w", {2500, 4000}}});
  Training run{.world = 4, .steps = 1};
  run.options.method = "dlion-vote";
  run.grad = [](int rank, std::int64_t, std::size_t, std::size_t i) {
    return (i + static_cast<std::size_t>(rank)) % 3 == 0 ? 1.0f : -1.0f;
  };
  for (const auto& rank : testing::train(layout, run)) {
    const double ring = 2.0 * 3 / 4 * d * 4;
    EXPECT_NEAR(static_cast<double>(rank.reports[0].bytes_sent) / (ring / 32), 1.0, 0.01);
  }
}

// The sum by the transport itself: sizes, then on threads an even split. No bound elsewhere.
TEST(MethodCost, OfANativeSumIsThatOfThreadsAndNoBound) {
  const Layout layout({{"w", {1000}}, {"b", {7}}});
  for (const int world : {1, 2, 3, 5}) {
    Training run{.world = world, .steps = 1};
    run.options.method = "lion";
    run.options.options = {{"dense", "native"}};
    run.options.bucket_coords = 64;
    for (const auto& rank : testing::train(layout, run)) {
      EXPECT_EQ(rank.cost.exact, world == 1) << "nothing is sent";
      EXPECT_EQ(rank.cost.bound, world == 1);
      EXPECT_EQ(rank.reports[0].bytes_sent, rank.cost.bytes()) << "N=" << world;
    }
  }
}

// Bits a coordinate each way: 16, or those of a level and a bfloat16 for 64 of them.
TEST(MethodCost, OfFewerBitsIsCountedBytesAndTheirShareOfFloat32) {
  for (const char* dense : {"bf16", "int8", "int4", "int2"}) {
    for (const std::int64_t d : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{100'003}}) {
      const Layout layout({{"w", {d}}, {"rows", {63, 3}}});
      for (const int world : {1, 2, 3, 4, 8}) {
        Training run{.world = world, .steps = 2};
        run.options.method = "lion";
        run.options.options = {{"dense", dense}};
        run.options.bucket_coords = 512;
        for (const auto& rank : testing::train(layout, run)) {
          EXPECT_TRUE(rank.cost.exact);
          for (const StepReport& report : rank.reports) {
            ASSERT_EQ(report.bytes_sent, rank.cost.bytes())
                << dense << " N=" << world << " d=" << d;
          }
        }
      }
    }
  }
  const Layout layout({{"w", {1'000'000}}});
  const auto bytes = [&](const char* dense) {
    const Cost cost = method_cost("lion", layout, {.options = {{"dense", dense}}});
    return static_cast<double>(cost.bytes());
  };
  EXPECT_NEAR(bytes("bf16") / bytes("ordered"), 0.5, 0.001);
  EXPECT_NEAR(bytes("int8") / bytes("ordered"), 8.25 / 32, 0.001);
  EXPECT_NEAR(bytes("int4") / bytes("ordered"), 4.25 / 32, 0.001);
  EXPECT_NEAR(bytes("int2") / bytes("ordered"), 2.25 / 32, 0.001);
}

// Ten million coordinates in buckets of a million: a block more in a shard costs N - 1 results.
TEST(MethodCost, OfRankZeroMayBeTheLeast) {
  const Layout layout({{"w", {10'000'000}}});
  const CostQuery query{.options = {{"freeze_steps", "1"}}, .world = 7, .step = 1};
  EXPECT_LT(method_cost("onebit-adam", layout, query).bytes(),
            largest_cost("onebit-adam", layout, query).bytes());
}

TEST(MethodCost, RefusesWhatNoOptimizerWouldTake) {
  const Layout layout({{"w", {64}}});
  EXPECT_THROW(method_cost("sgd", layout, {}), InvalidArgument);
  EXPECT_THROW(method_cost("lion", layout, {.options = {{"tie", "zero"}}}), InvalidArgument);
  EXPECT_THROW(method_cost("lion", layout, {.options = {{"dense", "red"}}}), InvalidArgument);
  EXPECT_THROW(method_cost("lion", layout, {.world = 0}), InvalidArgument);
  EXPECT_THROW(method_cost("lion", layout, {.world = 65536}), InvalidArgument);
  EXPECT_THROW(method_cost("lion", layout, {.world = 4, .rank = 4}), InvalidArgument);
}

// Down bytes of the averages: numbers up to N in as few bits as 32-bit words allow.
TEST(DistributedLionAvg, SendsCountsPacked) {
  for (const char* method : {"dlion-avg", "signum-avg"}) {
    EXPECT_EQ(method_info(method, 3).bits_down, 2);
    EXPECT_EQ(method_info(method, 4).bits_down, 32.0 / 13);
    EXPECT_EQ(method_info(method, 8).bits_down, 3.2);
    EXPECT_EQ(method_info(method, 32).bits_down, 32.0 / 6);
  }
}

TEST(DistributedLionAvg, SendsWholeBitPlanesDownWithTheOption) {
  const Layout layout({{"w", {1'000'000}}});
  for (const auto& [world, bits] : {std::pair{3, 2}, {4, 3}, {8, 4}, {32, 6}}) {
    const CostQuery query{.options = {{"counts", "planes"}, {"route", "sharded"}}, .world = world};
    const double sent = static_cast<double>(method_cost("dlion-avg", layout, query).bytes_down);
    EXPECT_NEAR(sent * 8 * world / (world - 1) / 1e6, bits, 0.02 * bits) << "N = " << world;
  }
}

TEST(DistributedLionAvg, RefusesAFormOfCountsThatIsNotKnown) {
  run_world(1, [](Communicator& comm) {
    const Layout layout({{"w", {10}}});
    texts::expect_error<InvalidArgument>(
        [&] {
          Optimizer optimizer(comm, layout,
                              {.method = "dlion-avg", .options = {{"counts", "bytes"}}});
        },
        {"choose packed or planes"});
  });
}

}  // namespace
}  // namespace pride::cost_test
