// Samples: every rank has those of all ranks, for the bytes that the cost says.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/samples.h"

#include <gtest/gtest.h>

#include "pride/comm/thread_comm.h"
#include "support/training.h"

namespace pride::exchange {
namespace {

float number(int rank, std::size_t i) {
  return static_cast<float>(1000 * rank) + static_cast<float>(i);
}

TEST(Samples, ReachAllRanks) {
  const std::vector<char> absent(1, 0);
  for (const int world : {1, 2, 3, 7}) {
    for (const std::size_t n : {0, 1, 7, 8, 100}) {
      run_world(world, [&](Communicator& comm) {
        StepContext ctx;
        ctx.rank = comm.rank();
        ctx.world = world;
        ctx.absent = absent;
        Wire wire;
        const Samples mine = prepare_samples(n, ctx, wire);
        for (std::size_t i = 0; i < n; ++i) {
          mine.u[i] = number(ctx.rank, i);
          mine.m[i] = -mine.u[i];
          mine.q[i] = i % 3 == 0 ? kNoLevel : static_cast<std::int8_t>(ctx.rank);
        }
        share_samples(comm, 2, ctx, n, wire);
        EXPECT_EQ(comm.traffic().bytes_sent, samples_cost(n, world).bytes())
            << "N=" << world << ", n=" << n;
        for (int r = 0; r < world; ++r) {
          const ReceivedSamples theirs = samples_of(wire, r, ctx, n);
          for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(theirs.u[i], number(r, i));
            EXPECT_EQ(theirs.m[i], -number(r, i));
            EXPECT_EQ(theirs.q[i], i % 3 == 0 ? kNoLevel : r);
          }
        }
      });
    }
  }
}

// Of a large tensor in small buckets many have no sample.
TEST(Samples, OfABucketWithoutAnyAreNotSent) {
  const Layout layout({{"w", {40'000}}});
  testing::Training run{.world = 2, .steps = 1};
  run.options.method = "lion-cub";
  run.options.options = {{"form", "sharded"}, {"probe_every", "1"}};
  run.options.bucket_coords = 512;
  for (const testing::RankResult& rank : testing::train(layout, run)) {
    EXPECT_EQ(rank.reports[0].bytes_sent, rank.cost.bytes());
  }
}

TEST(Samples, CostTheirFrames) {
  EXPECT_EQ(samples_cost(0, 5).bytes(), 0u);
  EXPECT_EQ(samples_cost(7, 5).bytes(), 4u * (64 + 64));
  EXPECT_EQ(samples_cost(8, 5).bytes(), 4u * (64 + 72));
}

}  // namespace
}  // namespace pride::exchange
