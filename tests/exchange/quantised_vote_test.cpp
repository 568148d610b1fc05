// The vote over levels: both forms agree with the sign of the exact sum, for what is absent and
// tied, too.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sums, coordinate by coordinate, and the tie rule of docs/wire_format.md. Votes are
// compared by what they do to parameters: what nobody looks at is not.
#include "exchange/quantised_vote.h"

#include <gtest/gtest.h>

#include "codecs/hash_keys.h"
#include "codecs/levels.h"
#include "codecs/payload.h"
#include "exchange/sign_vote.h"
#include "kernels/levels.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/random_bits.h"

namespace pride::exchange {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kStep = 5;

// Tensor 3 has no gradient on rank 1, tensor 5 nowhere, tensor 6 on no rank but the first.
Layout some_tensors() {
  return Layout({{"a", {70}},
                 {"b", {600}},
                 {"rows", {90, 64}},
                 {"not on 1", {300}},
                 {"c", {3}},
                 {"nowhere", {130}},
                 {"only on 0", {200}},
                 {"d", {1}}});
}

bool is_absent(int rank, std::size_t tensor) {
  return tensor == 5 || (tensor == 3 && rank == 1) || (tensor == 6 && rank != 0);
}

// Opposites cancel out often, and zeros are frequent.
std::int8_t level(int rank, std::size_t coord, int bits) {
  const int s = kernels::largest_level(bits);
  const std::uint64_t h = mix64(coord, static_cast<std::uint64_t>(rank / 2));
  if (h % 5 == 0) return 0;
  const int q = static_cast<int>((h >> 20) % static_cast<std::uint64_t>(2 * s + 1)) - s;
  const bool mirrored = rank % 2 == 1 && (h >> 8) % 4 != 0;
  return static_cast<std::int8_t>(mirrored ? -q : q);
}

// What a vote does to a parameter at 0 with a rate of 1; nothing if nobody has the coordinate.
float expected(const Layout& layout, std::size_t tensor, std::size_t i, int world,
               const QuantisedVote& how) {
  const TensorSlot& slot = layout.tensors()[tensor];
  const std::size_t coord = slot.offset + i;
  int sum = 0, present = 0;
  for (int r = 0; r < world; ++r) {
    if (is_absent(r, tensor)) continue;
    ++present;
    sum += level(r, coord, how.bits);
  }
  if (present == 0) return 0;
  if (sum != 0) return sum > 0 ? -1.0f : 1.0f;
  if (how.tie == Tie::kZero) return 0;
  const bool plus = (mix64(tie_key(kSeed, kStep), coord / 64) >> (coord % 64)) & 1;
  return plus ? -1.0f : 1.0f;
}

void write_levels(const Bucket& bucket, const StepContext& ctx, int bits, Wire& wire) {
  std::vector<std::int8_t> q;
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const LevelFrame at(bucket.shards[j], bits);
    const auto lines = words_at(wire.up[j].span(), at.lines_at, at.shape.size());
    std::size_t word = 0;
    for (const Piece& piece : bucket.shards[j].pieces) {
      q.clear();
      for (std::size_t c = piece.begin; c < piece.end; ++c) {
        q.push_back(level(ctx.rank, c, bits));
      }
      if (!ctx.is_absent(piece.tensor)) kernels::pack_levels(q, at.shape, word, lines);
      word += piece.n_words();
    }
  }
}

StepContext context(const Communicator& comm, const StepScalars& scalars,
                    std::span<const char> absent) {
  StepContext ctx;
  ctx.step = kStep;
  ctx.rank = comm.rank();
  ctx.world = comm.size();
  ctx.seed = kSeed;
  ctx.groups = std::span(&scalars, 1);
  ctx.absent = absent;
  return ctx;
}

// A vote on everything, from parameters at 0.
std::vector<float> voted(Communicator& comm, const Layout& layout, const QuantisedVote& how) {
  std::vector<char> absent;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    absent.push_back(is_absent(comm.rank(), t) ? 1 : 0);
  }
  StepScalars scalars;
  scalars.lr = 1;
  const StepContext ctx = context(comm, scalars, absent);
  FlatBuffer x(layout.flat_size());
  Wire wire;  // of all buckets in turn: nothing may be left of the one before
  for (const Bucket& bucket : make_buckets(layout, 2048, comm.size())) {
    prepare_levels(bucket, ctx, how, wire);
    write_levels(bucket, ctx, how.bits, wire);
    quantised_vote(comm, bucket, ctx, how, wire);
    apply_vote(bucket, wire, ctx, how.tie, {x.data(), x.size()});
  }
  return {x.span().begin(), x.span().end()};
}

class QuantisedVotes : public ::testing::TestWithParam<int> {};

TEST_P(QuantisedVotes, AreTheSignOfTheSumInBothForms) {
  const int world = GetParam();
  const Layout layout = some_tensors();
  run_world(world, [&](Communicator& comm) {
    for (int bits = 2; bits <= 8; ++bits) {
      for (const Tie tie : {Tie::kHash, Tie::kZero}) {
        QuantisedVote how{.bits = bits, .tie = tie, .form = QuantisedForm::kSharded};
        const auto sharded = voted(comm, layout, how);
        how.form = QuantisedForm::kDirect;
        const auto direct = voted(comm, layout, how);
        const std::string where = concat("N=", world, " bits=", bits, " rank ", comm.rank());
        EXPECT_EQ(sharded, direct) << where;
        for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
          for (std::size_t i = 0; i < layout.tensors()[t].n; ++i) {
            ASSERT_EQ(sharded[layout.tensors()[t].offset + i], expected(layout, t, i, world, how))
                << where << ": coordinate " << i << " of tensor " << t;
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(N, QuantisedVotes, ::testing::Values(1, 2, 3, 4, 7),
                         [](const auto& info) { return concat(info.param); });

// The levels that the test above makes have what it is about.
TEST(QuantisedVoteInput, HasTies) {
  const Layout layout = some_tensors();
  const QuantisedVote how{.bits = 4, .tie = Tie::kZero};
  std::size_t zeros = 0, n = layout.tensors()[1].n;
  for (std::size_t i = 0; i < n; ++i) zeros += expected(layout, 1, i, 2, how) == 0 ? 1 : 0;
  EXPECT_GT(zeros, n / 4);
  EXPECT_LT(zeros, 9 * n / 10);
}

// ---- Integers of the direct form. --------------------------------------------------------------

TEST(AccumulatorBits, AreTheFewestThatHoldTheLargestSum) {
  // bits = 2: the largest level is 1, and so the largest sum N
  EXPECT_EQ(accumulator_bits(127, 2), 8);
  EXPECT_EQ(accumulator_bits(128, 2), 16);
  EXPECT_EQ(accumulator_bits(32767, 2), 16);
  EXPECT_EQ(accumulator_bits(32768, 2), 32);
  // 127 a rank
  EXPECT_EQ(accumulator_bits(1, 8), 8);
  EXPECT_EQ(accumulator_bits(2, 8), 16);
  EXPECT_EQ(accumulator_bits(258, 8), 16);  // 32766
  EXPECT_EQ(accumulator_bits(259, 8), 32);
  EXPECT_EQ(accumulator_bits(65535, 8), 32);
}

TEST(AccumulatorBits, HoldTheLargestSumOfAThousandRanks) {
  for (int bits = 2; bits <= 8; ++bits) {
    const int most = 1024 * kernels::largest_level(bits);
    const int width = accumulator_bits(1024, bits);
    EXPECT_EQ(width, bits <= 6 ? 16 : 32) << bits << " bits: " << most;
    EXPECT_LE(most, (std::int64_t{1} << (width - 1)) - 1);
    EXPECT_GT(most, (std::int64_t{1} << (width / 2 - 1)) - 1);
  }
}

// All ranks at the largest level, and all at the lowest: the sums at the ends of the integers.
TEST(QuantisedVote, DoesNotOverflowWhereAllRanksAgree) {
  const Layout layout({{"w", {128}}});
  const std::vector<char> absent(1, 0);
  for (const auto& [world, bits] : {std::pair{18, 4}, {19, 4}, {2, 7}, {3, 7}, {1, 8}, {2, 8}}) {
    run_world(world, [&, world = world, bits = bits](Communicator& comm) {
      StepScalars scalars;
      scalars.lr = 1;
      const StepContext ctx{
          .rank = comm.rank(), .world = world, .groups = std::span(&scalars, 1), .absent = absent};
      const QuantisedVote how{.bits = bits, .form = QuantisedForm::kDirect};
      const Bucket bucket = make_buckets(layout, 1 << 20, world)[0];
      const auto s = static_cast<std::int8_t>(kernels::largest_level(bits));
      Wire wire;
      prepare_levels(bucket, ctx, how, wire);
      for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
        const LevelFrame at(bucket.shards[j], bits);
        std::vector<std::int8_t> q(bucket.shards[j].size());
        for (std::size_t i = 0; i < q.size(); ++i)
          q[i] = i % 2 == 0 ? s : static_cast<std::int8_t>(-s);
        kernels::pack_levels(q, at.shape, 0,
                             words_at(wire.up[j].span(), at.lines_at, at.shape.size()));
      }
      quantised_vote(comm, bucket, ctx, how, wire);
      FlatBuffer x(layout.flat_size());
      apply_vote(bucket, wire, ctx, how.tie, {x.data(), x.size()});
      for (std::size_t i = 0; i < 128; ++i) {
        EXPECT_EQ(x.span()[i], i % 2 == 0 ? -1.0f : 1.0f) << "N=" << world << " bits=" << bits;
      }
    });
  }
}

// ---- Cost. -------------------------------------------------------------------------------------

TEST(QuantisedCost, OfAllRanksIsTheTotal) {
  const Layout layout = some_tensors();
  for (const int world : {1, 2, 3, 4, 7}) {
    for (const Bucket& bucket : make_buckets(layout, 2048, world)) {
      for (int bits = 2; bits <= 8; ++bits) {
        for (const auto form : {QuantisedForm::kSharded, QuantisedForm::kDirect}) {
          const QuantisedVote how{.bits = bits, .tie = Tie::kZero, .form = form};
          std::uint64_t sum = 0;
          for (int r = 0; r < world; ++r) sum += quantised_cost(bucket, r, how).bytes();
          EXPECT_EQ(sum, quantised_total(bucket, how)) << "N=" << world << " bits=" << bits;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pride::exchange
