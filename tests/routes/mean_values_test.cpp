// Averaged momenta: in rank order, rounded to the format, the same on all ranks. A value outside
// the format's range stops all ranks with the same error.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sum, value by value; for levels the codec itself, shard by shard.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "methods/momentum_sync.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/random_bits.h"
#include "support/one_exchange.h"

namespace pride::mean_values_test {
namespace {

using Kind = ValueFormat::Kind;
using Floats = std::vector<float>;

constexpr int kWorlds[] = {2, 3, 4, 7};
constexpr std::size_t kSizes[] = {64, 128, 320, 64 * 7, 64 * 50};  // fewer blocks than ranks, more
constexpr float kMax = std::numeric_limits<float>::max();

// Of very different sizes, so that the order of a sum shows.
Floats values_of(int rank, std::size_t n) {
  Floats values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t h = mix64(static_cast<std::uint64_t>(rank), i);
    const float x = (static_cast<float>(h >> 40) - 0x1p23f) * 0x1p-23f;
    values[i] = std::ldexp(x, static_cast<int>(h % 30));
  }
  return values;
}

Floats mean_in_rank_order(const std::vector<Floats>& rows) {
  Floats mean = rows[0];
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t r = 1; r < rows.size(); ++r) mean[i] += rows[r][i];
    mean[i] /= static_cast<float>(rows.size());
  }
  return mean;
}

// Through a frame of each shard, as the ranks cut them.
Floats rounded(const Floats& values, ValueFormat format, int world) {
  Floats out(values.size());
  const std::size_t blocks = values.size() / 64, n = static_cast<std::size_t>(world);
  for (std::size_t j = 0; j < n; ++j) {
    const std::size_t begin = blocks * j / n * 64, end = blocks * (j + 1) / n * 64;
    ByteBuffer frame;
    frame.resize(value_frames(Codec::kValues, format).bytes(Shard{begin, end, {}}));
    write_values(std::span(values).subspan(begin, end - begin), format, frame.span());
    read_values(frame.span(), format, std::span(out).subspan(begin, end - begin));
  }
  return out;
}

// Tensors of 64 values, all of them due at once in one bucket.
Layout layout_of(std::size_t n) {
  std::vector<TensorSpec> tensors;
  for (std::size_t t = 0; t < n / 64; ++t) tensors.push_back({concat("m", t), {64}});
  return Layout(tensors);
}

methods::MomentumSync sync_of(const Layout& layout, ValueFormat format) {
  return {layout, std::vector<char>(layout.tensors().size(), 1), methods::SyncSchedule(1), format};
}

// Result on each rank, and the values that each sent.
struct Outcome {
  std::vector<Floats> values;
  std::vector<std::optional<NonFinite>> non_finite;
  std::vector<std::uint64_t> sent;
};

Outcome mean_of(const std::vector<Floats>& rows, ValueFormat format) {
  const auto world = static_cast<int>(rows.size());
  Outcome out{rows, std::vector<std::optional<NonFinite>>(rows.size()),
              std::vector<std::uint64_t>(rows.size())};
  run_world(world, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    const Layout layout = layout_of(rows[r].size());
    const std::vector<char> unused(layout.tensors().size(), 0);
    const StepContext ctx = testing::context(comm, unused);
    const auto sync = sync_of(layout, format);
    const testing::ServeBy server([&](const Shard& shard, const VoterFrames& voters,
                                      const SharedContext& shared,
                                      Reply& reply) { sync.serve(shard, voters, shared, reply); });
    const Bucket bucket = make_buckets(layout, 1 << 20, world)[0];
    const auto part = sync.part(bucket, ctx);
    ASSERT_TRUE(part.has_value());
    Scratch scratch;
    Wire wire;
    size_frames(*part, ctx, wire);
    sync.encode(Space::host(), bucket, ctx, out.values[r], *part, wire);
    if (wire.fault_word() != Wire::kNoTensor) {
      wire.non_finite = NonFinite{comm.rank(), wire.fault_word()};
    }
    exchange(comm, server, *part, ctx, {}, scratch, wire);
    if (!wire.non_finite) sync.apply(Space::host(), bucket, ctx, *part, wire, out.values[r]);
    out.non_finite[r] = wire.non_finite;
    out.sent[r] = comm.traffic().bytes_sent;
  });
  return out;
}

std::vector<Floats> rows_of(int world, std::size_t n) {
  std::vector<Floats> rows;
  for (int r = 0; r < world; ++r) rows.push_back(values_of(r, n));
  return rows;
}

TEST(MeanValues, OfFloatsAreTheMeanInRankOrder) {
  for (const int world : kWorlds) {
    for (const std::size_t n : kSizes) {
      const auto rows = rows_of(world, n);
      const Outcome out = mean_of(rows, {Kind::kFloat32, 32});
      const Floats expected = mean_in_rank_order(rows);
      for (const Floats& values : out.values) EXPECT_EQ(values, expected) << world << ", " << n;
    }
  }
}

TEST(MeanValues, OfOtherFormatsAreTheRoundedMeanOfRoundedValues) {
  for (const ValueFormat format : {ValueFormat{Kind::kBFloat16, 16}, ValueFormat{Kind::kLevels, 2},
                                   ValueFormat{Kind::kLevels, 5}, ValueFormat{Kind::kLevels, 8}}) {
    for (const int world : kWorlds) {
      for (const std::size_t n : kSizes) {
        auto rows = rows_of(world, n);
        const Outcome out = mean_of(rows, format);
        for (Floats& row : rows) row = rounded(row, format, world);
        const Floats expected = rounded(mean_in_rank_order(rows), format, world);
        for (const Floats& values : out.values) {
          EXPECT_EQ(values, expected) << format.bits << " bits, N=" << world << ", n=" << n;
        }
      }
    }
  }
}

TEST(MeanValues, CostWhatIsCounted) {
  for (const int world : kWorlds) {
    for (const std::size_t n : kSizes) {
      const ValueFormat format{Kind::kLevels, 3};
      const Outcome out = mean_of(rows_of(world, n), format);
      const Layout layout = layout_of(n);
      SharedContext shared;
      shared.voters = world;
      std::vector<Part> parts;
      parts.push_back(
          *sync_of(layout, format).part(make_buckets(layout, 1 << 20, world)[0], shared));
      std::vector<Cost> costs(static_cast<std::size_t>(world));
      add_cost(parts[0], {}, costs);
      std::uint64_t sum = 0;
      for (std::size_t r = 0; r < costs.size(); ++r) {
        EXPECT_EQ(out.sent[r], costs[r].bytes()) << world << ", " << n;
        sum += costs[r].bytes();
      }
      EXPECT_EQ(sum, total_bytes(parts, world));
    }
  }
}

TEST(MeanValues, OfOneRankAreNotSent) {
  const Layout layout = layout_of(128);
  const auto sync = sync_of(layout, {Kind::kLevels, 3});
  EXPECT_FALSE(sync.part(make_buckets(layout, 1 << 20, 1)[0], {}).has_value());
}

void expect_non_finite(const std::vector<Floats>& rows, ValueFormat format, NonFinite expected) {
  const Outcome out = mean_of(rows, format);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    ASSERT_TRUE(out.non_finite[r].has_value()) << "rank " << r;
    EXPECT_EQ(*out.non_finite[r], expected);
  }
}

TEST(MeanValues, StopAlikeOnAllRanksAtWhatTheFormatCannotHold) {
  auto rows = rows_of(3, 192);
  rows[1][100] = kMax;  // rounds to an infinite bfloat16
  rows[2][0] = kMax;
  expect_non_finite(rows, {Kind::kBFloat16, 16}, {1, 1});
}

TEST(MeanValues, StopAlikeOnAllRanksAtAMeanThatOverflows) {
  auto rows = rows_of(3, 192);
  for (Floats& row : rows) row[150] = -kMax;
  expect_non_finite(rows, {Kind::kFloat32, 32}, {NonFinite::kSum, 2});
  EXPECT_FALSE(mean_of(rows_of(3, 192), {Kind::kFloat32, 32}).non_finite[0].has_value());
}

}  // namespace
}  // namespace pride::mean_values_test
