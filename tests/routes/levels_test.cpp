// The vote over levels: both routes give the sign of the exact sum, also for unused tensors and
// ties.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the sums, coordinate by coordinate, and the tie rule of docs/wire_format.md. Votes are
// compared by their effect on parameters; bits without an effect are not compared.
#include "codecs/levels.h"

#include <gtest/gtest.h>

#include <cstring>

#include "codecs/hash_keys.h"
#include "kernels/levels.h"
#include "methods/lion_cub.h"
#include "methods/registry.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/random_bits.h"
#include "support/one_exchange.h"

namespace pride::levels_test {
namespace {

using methods::Tie;

// Lion Cub's votes of this many bits, by one of its routes.
struct Votes {
  int bits = 4;
  Tie tie = Tie::kHash;
  bool native = false;

  std::unique_ptr<Method> method(const Layout& layout, int world) const {
    const auto options = complete_options("lion-cub", {{"bits", concat(bits)},
                                                       {"tie", tie == Tie::kZero ? "zero" : "hash"},
                                                       {"route", native ? "native" : "sharded"},
                                                       {"sync", "none"},
                                                       {"shared", "no"}});
    return make_method("lion-cub", {layout, world, options});
  }
};

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

bool is_unused(int rank, std::size_t tensor) {
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

// Effect of a vote on a parameter at 0 with a rate of 1; none if no rank uses it.
float expected(const Layout& layout, std::size_t tensor, std::size_t i, int world,
               const Votes& votes) {
  const TensorSlot& slot = layout.tensors()[tensor];
  const std::size_t coord = slot.offset + i;
  int sum = 0, users = 0;
  for (int r = 0; r < world; ++r) {
    if (is_unused(r, tensor)) continue;
    ++users;
    sum += level(r, coord, votes.bits);
  }
  if (users == 0) return 0;
  if (sum != 0) return sum > 0 ? -1.0f : 1.0f;
  if (votes.tie == Tie::kZero) return 0;
  // 0 lies in cell 0, whose bit is 0, before it is inverted in every second pair of exchanges
  return (kStep + 1) / 2 % 2 == 1 ? -1.0f : 1.0f;
}

// Levels of the test into the frames, or the integers, of a bucket.
using LevelOf = std::function<std::int8_t(std::size_t coord)>;
void write_levels(const Bucket& bucket, const StepContext& ctx, const Votes& votes,
                  const LevelOf& level_of, Flight& flight) {
  ByteBuffer& sums = flight.wires.back().room;
  std::size_t width = 0;
  if (votes.native) {
    const Sum sum = flight.parts.back().sum;
    width = sum == Sum::kInt8 ? 1 : sum == Sum::kInt16 ? 2 : 4;
    sums.resize(width * bucket.size());
    std::ranges::fill(sums.span(), std::byte{0});
  }
  std::vector<std::int8_t> q;
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    for (const Piece& piece : bucket.shards[j].pieces) {
      if (ctx.is_unused(piece.tensor)) continue;
      q.clear();
      for (std::size_t c = piece.begin; c < piece.end; ++c) q.push_back(level_of(c));
      for (std::size_t i = 0; i < q.size() && votes.native; ++i) {
        const std::int32_t wide = q[i];  // the low bytes are the narrow integer
        std::memcpy(sums.span().data() + width * (piece.begin + i - bucket.begin), &wide, width);
      }
      if (votes.native) continue;
      const LevelView view(flight.wire(0).up[j].span().data(), bucket.shards[j], votes.bits);
      kernels::pack_levels(q, view.shape, piece.first_word, view.lines);
    }
  }
}

// A vote on everything, from parameters at 0.
std::vector<float> voted(Communicator& comm, const Layout& layout, const Votes& votes,
                         std::span<const char> unused, const LevelOf& level_of) {
  StepScalars scalars;
  scalars.lr = 1;
  StepContext ctx = testing::context(comm, unused);
  ctx.step = kStep;
  ctx.seed = kSeed;
  ctx.groups = std::span(&scalars, 1);
  FlatBuffer x(layout.flat_size());
  ctx.x = {.flat = ConstFloats(std::as_const(x).span())};
  const auto method = votes.method(layout, comm.size());
  const auto encode = [&](const Bucket& bucket, Flight& flight) {
    for (ByteBuffer& up : flight.wire(0).up) {  // lines of unused tensors are zero
      std::ranges::fill(up.span().subspan(kHeaderBytes + 8), std::byte{0});
    }
    write_levels(bucket, ctx, votes, level_of, flight);
  };
  EXPECT_FALSE(testing::one_step(comm, *method, layout, 2048, ctx, encode, {.flat = x.span()}));
  return {x.span().begin(), x.span().end()};
}

class QuantisedVotes : public ::testing::TestWithParam<int> {};

TEST_P(QuantisedVotes, AreTheSignOfTheSumOnBothRoutes) {
  const int world = GetParam();
  const Layout layout = some_tensors();
  run_world(world, [&](Communicator& comm) {
    std::vector<char> unused;
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      unused.push_back(is_unused(comm.rank(), t) ? 1 : 0);
    }
    for (int bits = 2; bits <= 8; ++bits) {
      const auto level_of = [&](std::size_t c) { return level(comm.rank(), c, bits); };
      for (const Tie tie : {Tie::kHash, Tie::kZero}) {
        Votes votes{bits, tie, false};
        const auto sharded = voted(comm, layout, votes, unused, level_of);
        votes.native = true;
        const std::string where = concat("N=", world, " bits=", bits, " rank ", comm.rank());
        EXPECT_EQ(sharded, voted(comm, layout, votes, unused, level_of)) << where;
        for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
          for (std::size_t i = 0; i < layout.tensors()[t].n; ++i) {
            ASSERT_EQ(sharded[layout.tensors()[t].offset + i], expected(layout, t, i, world, votes))
                << where << ": coordinate " << i << " of tensor " << t;
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(N, QuantisedVotes, ::testing::Values(1, 2, 3, 4, 7),
                         [](const auto& info) { return concat(info.param); });

// The levels of the test above give ties, and other votes.
TEST(QuantisedVoteInput, HasTies) {
  const Layout layout = some_tensors();
  const Votes votes{4, Tie::kZero};
  std::size_t zeros = 0, n = layout.tensors()[1].n;
  for (std::size_t i = 0; i < n; ++i) zeros += expected(layout, 1, i, 2, votes) == 0 ? 1 : 0;
  EXPECT_GT(zeros, n / 4);
  EXPECT_LT(zeros, 9 * n / 10);
}

// ---- Integers of the native route. -------------------------------------------------------------

int sum_bits(int world, int bits) {
  const Layout layout({{"w", {64}}});
  const Bucket bucket = make_buckets(layout, 64, 1)[0];
  SharedContext shared;
  shared.voters = world;
  const Sum sum = Votes{bits, Tie::kHash, true}.method(layout, world)->parts(bucket, shared)[1].sum;
  return sum == Sum::kInt8 ? 8 : sum == Sum::kInt16 ? 16 : sum == Sum::kInt32 ? 32 : 0;
}

TEST(SumBits, AreTheFewestThatHoldTheLargestSum) {
  // bits = 2: the largest level is 1, and so the largest sum N
  EXPECT_EQ(sum_bits(127, 2), 8);
  EXPECT_EQ(sum_bits(128, 2), 16);
  EXPECT_EQ(sum_bits(32767, 2), 16);
  EXPECT_EQ(sum_bits(32768, 2), 32);
  // 127 a rank
  EXPECT_EQ(sum_bits(1, 8), 8);
  EXPECT_EQ(sum_bits(2, 8), 16);
  EXPECT_EQ(sum_bits(258, 8), 16);  // 32766
  EXPECT_EQ(sum_bits(259, 8), 32);
  EXPECT_EQ(sum_bits(65535, 8), 32);
}

TEST(SumBits, HoldTheLargestSumOfAThousandRanks) {
  for (int bits = 2; bits <= 8; ++bits) {
    const int most = 1024 * kernels::largest_level(bits);
    const int width = sum_bits(1024, bits);
    EXPECT_EQ(width, bits <= 6 ? 16 : 32) << bits << " bits: " << most;
    EXPECT_LE(most, (std::int64_t{1} << (width - 1)) - 1);
    EXPECT_GT(most, (std::int64_t{1} << (width / 2 - 1)) - 1);
  }
}

}  // namespace
}  // namespace pride::levels_test
