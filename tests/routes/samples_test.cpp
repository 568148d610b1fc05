// Samples: every rank gets the samples of all ranks, and the bytes equal the cost.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/samples.h"

#include <gtest/gtest.h>

#include "methods/vote_probe.h"
#include "pride/comm/thread_comm.h"
#include "support/one_exchange.h"
#include "support/training.h"

namespace pride::samples_test {
namespace {

float number(int rank, std::size_t i) {
  return static_cast<float>(1000 * rank) + static_cast<float>(i);
}

Part samples_part(std::size_t n, int world) {
  return one_shot_part(2, n, sample_frames(), all_sample_frames(world));
}

TEST(Samples, ReachAllRanks) {
  const std::vector<char> unused(1, 0);
  const testing::ServeBy server([](const Shard&, const Ballots& up, const Round&, Reply& reply) {
    methods::VoteProbe::serve(up, reply);
  });
  for (const int world : {1, 2, 3, 7}) {
    for (const std::size_t n : {1, 7, 8, 100}) {
      run_world(world, [&](Communicator& comm) {
        const StepContext ctx = testing::context(comm, unused);
        const Part part = samples_part(n, world);
        Scratch scratch;
        Wire wire;
        prepare(part, ctx, wire);
        const SampleView mine(wire.up[0].span().data(), n);
        for (std::size_t i = 0; i < n; ++i) {
          mine.u[i] = number(ctx.rank, i);
          mine.m[i] = -mine.u[i];
          mine.q[i] = i % 3 == 0 ? kNoLevel : static_cast<std::int8_t>(ctx.rank);
        }
        clear_padding(mine.q);
        exchange(comm, server, part, ctx, {}, scratch, wire);
        std::vector<Cost> costs(static_cast<std::size_t>(world));
        add_cost(part, {}, costs);
        EXPECT_EQ(comm.traffic().bytes_sent, costs[0].bytes()) << "N=" << world << ", n=" << n;
        const auto* frame = wire.down[0].span().data();
        for (int r = 0; r < world; ++r) {
          const SampleView theirs(frame, n);
          for (std::size_t i = 0; i < n; ++i) {
            EXPECT_EQ(theirs.u[i], number(r, i));
            EXPECT_EQ(theirs.m[i], -number(r, i));
            EXPECT_EQ(theirs.q[i], i % 3 == 0 ? kNoLevel : r);
          }
          frame += theirs.bytes - kHeaderBytes;
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
  run.options.options = {{"route", "sharded"}, {"probe_every", "1"}};
  run.options.bucket_coords = 512;
  for (const testing::RankResult& rank : testing::train(layout, run)) {
    EXPECT_EQ(rank.reports[0].bytes_sent, rank.cost.bytes());
  }
}

TEST(Samples, CostTheirFrames) {
  for (const auto& [n, bytes] : {std::pair{7, 64 + 64}, {8, 64 + 72}}) {
    std::vector<Cost> costs(5);
    add_cost(samples_part(static_cast<std::size_t>(n), 5), {}, costs);
    for (const Cost& cost : costs) EXPECT_EQ(cost.bytes(), static_cast<std::uint64_t>(4 * bytes));
  }
}

}  // namespace
}  // namespace pride::samples_test
