// The mean of values: in rank order, rounded as the format says, the same on all ranks; and what a
// format cannot hold stops all ranks alike.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sum, value by value; for levels the codec itself, shard by shard.
#include "exchange/mean_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/random_bits.h"

namespace pride::exchange {
namespace {

using Kind = ValueFormat::Kind;
using Floats = std::vector<float>;

constexpr int kWorlds[] = {1, 2, 3, 4, 7};
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
    const ValueFrame at(end - begin, format);
    ByteBuffer frame;
    frame.resize(at.bytes);
    write_values(std::span(values).subspan(begin, at.n), at, frame.span());
    read_values(frame.span(), at, std::span(out).subspan(begin, at.n));
  }
  return out;
}

StepContext context(const Communicator& comm) {
  static const std::vector<char> absent(3, 0);
  StepContext ctx;
  ctx.rank = comm.rank();
  ctx.world = comm.size();
  ctx.absent = absent;
  return ctx;
}

// Three tensors of a third each.
ValueSource source_of(std::size_t n) {
  return {4, [n](std::size_t i) { return static_cast<std::uint32_t>(3 * i / n); }};
}

// What the ranks end with, and what each sent.
struct Outcome {
  std::vector<Floats> values;
  std::vector<std::optional<Poison>> poison;
  std::vector<std::uint64_t> sent;
};

Outcome mean_of(const std::vector<Floats>& rows, ValueFormat format) {
  const auto world = static_cast<int>(rows.size());
  Outcome out{rows, std::vector<std::optional<Poison>>(rows.size()),
              std::vector<std::uint64_t>(rows.size())};
  run_world(world, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Wire wire;
    mean_values(comm, source_of(rows[r].size()), context(comm), format, out.values[r], wire);
    out.poison[r] = wire.poison;
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
      std::uint64_t sum = 0;
      for (int r = 0; r < world; ++r) {
        const Cost cost = mean_values_cost(n, format, world, r);
        EXPECT_EQ(out.sent[static_cast<std::size_t>(r)], cost.bytes()) << world << ", " << n;
        sum += cost.bytes();
      }
      EXPECT_EQ(sum, mean_values_total(n, format, world));
    }
  }
  EXPECT_EQ(mean_values_cost(0, {}, 4, 1).bytes() + mean_values_total(0, {}, 4), 0u);
}

void expect_poison(const std::vector<Floats>& rows, ValueFormat format, int rank,
                   std::uint32_t tensor) {
  const Outcome out = mean_of(rows, format);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    ASSERT_TRUE(out.poison[r].has_value()) << "rank " << r;
    EXPECT_EQ(out.poison[r]->rank, rank);
    EXPECT_EQ(out.poison[r]->tensor, tensor);
    EXPECT_EQ(out.values[r], rows[r]) << "changed on rank " << r;
  }
}

TEST(MeanValues, StopAlikeOnAllRanksAtWhatTheFormatCannotHold) {
  auto rows = rows_of(3, 192);
  rows[1][100] = kMax;  // rounds to an infinite bfloat16
  rows[2][0] = kMax;
  expect_poison(rows, {Kind::kBFloat16, 16}, 1, 1);
}

TEST(MeanValues, StopAlikeOnAllRanksAtAMeanThatOverflows) {
  auto rows = rows_of(3, 192);
  for (Floats& row : rows) row[150] = -kMax;
  expect_poison(rows, {Kind::kFloat32, 32}, Poison::kSum, 2);
  EXPECT_FALSE(mean_of(rows_of(3, 192), {Kind::kFloat32, 32}).poison[0].has_value());
}

}  // namespace
}  // namespace pride::exchange
