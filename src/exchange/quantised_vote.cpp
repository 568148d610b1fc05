// SPDX-License-Identifier: Apache-2.0
#include "exchange/quantised_vote.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "codecs/hash_keys.h"
#include "codecs/levels.h"
#include "codecs/payload.h"
#include "exchange/frames.h"
#include "kernels/levels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

constexpr std::size_t kRollCallWire = 0;

const Shard& own(const Bucket& bucket, const StepContext& ctx) {
  return bucket.shards[static_cast<std::size_t>(ctx.rank)];
}

// Bit k = 1 where piece k is absent on all ranks.
void combine_absent(const StepContext& ctx, const LevelFrame& at, const Wire& wire,
                    std::span<std::uint64_t> nobody) {
  std::ranges::fill(nobody, ~std::uint64_t{0});
  for (int r = 0; r < ctx.world; ++r) {
    const auto absent = words_at(frame_from(wire, r, ctx.rank), at.absent_at, at.absent_words);
    for (std::size_t w = 0; w < nobody.size(); ++w) nobody[w] &= absent[w];
  }
}

// Votes on the words of one run of ranks. Returns false where a code is wrong.
bool vote_run(const Run& run, const Shard& shard, const StepContext& ctx, const LevelFrame& up,
              const VoteFrame& down, Tie tie, Wire& wire) {
  std::vector<const std::uint64_t*> lines;
  for (const int r : run.ranks) {
    lines.push_back(words_at(frame_from(wire, r, ctx.rank), up.lines_at, up.shape.size()).data());
  }
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  const auto positive = words_at(out, down.positive_at + 8 * run.first_word, run.n_words);
  const kernels::LevelRows rows{lines, up.shape, run.first_word};
  if (tie == Tie::kZero) {
    const auto nonzero = words_at(out, down.nonzero_at + 8 * run.first_word, run.n_words);
    return kernels::vote_levels_ternary(rows, positive, nonzero);
  }
  return kernels::vote_levels(
      rows, {tie_key(ctx.seed, ctx.step), shard.begin / 64 + run.first_word}, positive);
}

void vote_sharded(const Bucket& bucket, const StepContext& ctx, const QuantisedVote& how,
                  Wire& wire) {
  const Shard& shard = own(bucket, ctx);
  const LevelFrame up(shard, how.bits);
  const VoteFrame down(shard, how.tie == Tie::kZero);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  combine_absent(ctx, up, wire, words_at(out, down.nobody_at, down.nobody_words));
  bool good = true;
  for (const Run& run : runs_of(shard, wire, ctx)) {
    good &= vote_run(run, shard, ctx, up, down, how.tie, wire);
  }
  if (good) return;
  check_up(Codec::kLevels, bucket, ctx, wire,
           [&](const ReceivedFrame& f) { check_codes(f, how.bits); });
}

void run_sharded(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                 const QuantisedVote& how, Wire& wire) {
  send_up(comm, Codec::kLevels, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kLevels, bucket, ctx, wire,
           [&](const ReceivedFrame& f) { check_levels(f, how.bits); });
  vote_sharded(bucket, ctx, how, wire);
  send_down(comm, Codec::kVote, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(Codec::kVote, bucket, ctx, wire,
             [&](const ReceivedFrame& f) { check_vote(f, how.tie == Tie::kZero, ctx.absent); });
}

// --- The direct form. ---------------------------------------------------------------------------

// Who takes part: this rank's frame for every other.
void write_roll_call(const Bucket& bucket, const StepContext& ctx, int bits, Wire& wire) {
  const RollCallFrame at(bucket);
  Wire& roll = wire.extra(kRollCallWire);
  const std::size_t n = bucket.shards.size();
  roll.up.resize(n);
  for (ByteBuffer& frame : roll.up) frame.resize(at.bytes);
  const auto mine = roll.up[static_cast<std::size_t>(ctx.rank)].span();
  std::ranges::fill(mine, std::byte{0});
  for (std::size_t j = 0; j < n; ++j) {
    const LevelFrame levels(bucket.shards[j], bits);
    const std::span<const std::byte> frame = wire.up[j].span();
    const auto absent = words_at(frame, levels.absent_at, levels.absent_words);
    for (std::size_t k = 0; k < bucket.shards[j].pieces.size(); ++k) {
      if (bit_at(absent, k)) {
        set_bit(words_at(mine, at.absent_at, at.absent_words), at.first_piece[j] + k);
      }
    }
  }
  for (auto& frame : roll.up) {
    if (frame.span().data() != mine.data()) std::ranges::copy(mine, frame.span().begin());
  }
  roll.poison = wire.poison;
}

// What the ranks said of each shard, into its frame of votes.
void read_roll_call(const Bucket& bucket, const StepContext& ctx, Tie tie, Wire& wire) {
  const RollCallFrame roll(bucket);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const VoteFrame at(bucket.shards[j], tie == Tie::kZero);
    const auto out = wire.down[j].span();
    const auto nobody = words_at(out, at.nobody_at, at.nobody_words);
    std::ranges::fill(nobody, std::uint64_t{0});
    std::vector<int> n_absent(bucket.shards[j].pieces.size());
    for (int r = 0; r < ctx.world; ++r) {
      const auto frame = frame_from(wire.extra(kRollCallWire), r, ctx.rank);
      const auto absent = words_at(frame, roll.absent_at, roll.absent_words);
      for (std::size_t k = 0; k < n_absent.size(); ++k) {
        n_absent[k] += bit_at(absent, roll.first_piece[j] + k) ? 1 : 0;
      }
    }
    for (std::size_t k = 0; k < n_absent.size(); ++k) {
      if (n_absent[k] == ctx.world) set_bit(nobody, k);
    }
  }
}

// Levels of the whole bucket as integers; 0 where a tensor is absent, and in padding.
std::vector<std::int8_t> levels_of(const Bucket& bucket, const StepContext& ctx, int bits,
                                   const Wire& wire) {
  std::vector<std::int8_t> q(bucket.size());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const LevelFrame at(bucket.shards[j], bits);
    const std::span<const std::byte> frame = wire.up[j].span();
    const auto lines = words_at(frame, at.lines_at, at.shape.size());
    std::size_t word = 0;
    for (const Piece& piece : bucket.shards[j].pieces) {
      if (!ctx.is_absent(piece.tensor)) {
        kernels::unpack_levels(lines, at.shape, word,
                               std::span(q).subspan(piece.begin - bucket.begin, piece.n()));
      }
      word += piece.n_words();
    }
  }
  return q;
}

// The sums over the ranks. A transport that overflows, or loses one, is found where it shows.
template <typename T>
std::vector<std::int32_t> summed(Communicator& comm, const std::vector<std::int8_t>& q,
                                 std::int64_t most, Wire& wire) {
  // in a buffer of the wire: it must live until the transport lets go of it
  ByteBuffer& bytes = wire.extra(kRollCallWire).dense_in;
  bytes.resize(sizeof(T) * q.size());
  const std::span<T> sums(reinterpret_cast<T*>(bytes.span().data()), q.size());
  std::ranges::copy(q, sums.begin());
  comm.native_sum(sums);
  for (const T s : sums) {
    if (s >= -most && s <= most) continue;
    throw CommError(concat("the transport's sum of levels is ", static_cast<std::int64_t>(s),
                           ", which ", comm.size(), " ranks cannot have"));
  }
  return {sums.begin(), sums.end()};
}

std::vector<std::int32_t> sum_of(Communicator& comm, const std::vector<std::int8_t>& q, int bits,
                                 Wire& wire) {
  const std::int64_t most = std::int64_t{comm.size()} * kernels::largest_level(bits);
  switch (accumulator_bits(comm.size(), bits)) {
    case 8:
      return summed<std::int8_t>(comm, q, most, wire);
    case 16:
      return summed<std::int16_t>(comm, q, most, wire);
    default:
      return summed<std::int32_t>(comm, q, most, wire);
  }
}

void vote_direct(const Bucket& bucket, const StepContext& ctx, Tie tie,
                 std::span<const std::int32_t> sums, Wire& wire) {
  const std::uint64_t key = tie_key(ctx.seed, ctx.step);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const VoteFrame at(shard, tie == Tie::kZero);
    const auto out = wire.down[j].span();
    std::size_t word = 0;
    for (const Piece& piece : shard.pieces) {
      const std::size_t n = piece.n_words();
      const auto nonzero = tie == Tie::kZero ? words_at(out, at.nonzero_at + 8 * word, n)
                                             : std::span<std::uint64_t>{};
      kernels::vote_sums(sums.subspan(piece.begin - bucket.begin, piece.n()),
                         {key, piece.begin / 64}, words_at(out, at.positive_at + 8 * word, n),
                         nonzero);
      word += n;
    }
  }
}

void run_direct(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                const QuantisedVote& how, Wire& wire) {
  write_roll_call(bucket, ctx, how.bits, wire);
  Wire& roll = wire.extra(kRollCallWire);
  send_up(comm, Codec::kRollCall, bucket, ctx, {}, roll);
  wire.poison = roll.poison;
  if (wire.poison) return;
  check_up(Codec::kRollCall, bucket, ctx, roll,
           [&](const ReceivedFrame& f) { check_roll_call(f, bucket); });
  read_roll_call(bucket, ctx, how.tie, wire);
  const auto sums = sum_of(comm, levels_of(bucket, ctx, how.bits, wire), how.bits, wire);
  vote_direct(bucket, ctx, how.tie, sums, wire);
}

}  // namespace

int accumulator_bits(int world, int bits) {
  const std::int64_t most = std::int64_t{world} * kernels::largest_level(bits);
  if (most <= std::numeric_limits<std::int8_t>::max()) return 8;
  return most <= std::numeric_limits<std::int16_t>::max() ? 16 : 32;
}

void prepare_levels(const Bucket& bucket, const StepContext& ctx, const QuantisedVote& how,
                    Wire& wire) {
  const std::size_t n = bucket.shards.size();
  wire.up.resize(n);
  wire.down.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    const Shard& shard = bucket.shards[j];
    const LevelFrame at(shard, how.bits);
    wire.up[j].resize(at.bytes);
    wire.down[j].resize(VoteFrame(shard, how.tie == Tie::kZero).bytes);
    const auto frame = wire.up[j].span();
    const auto absent = words_at(frame, at.absent_at, at.absent_words);
    std::ranges::fill(absent, std::uint64_t{0});
    bool any_absent = false;
    for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
      if (!ctx.is_absent(shard.pieces[k].tensor)) continue;
      set_bit(absent, k);
      any_absent = true;
    }
    // encode leaves an absent piece alone
    if (any_absent) std::ranges::fill(frame.subspan(at.lines_at), std::byte{0});
  }
}

void quantised_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                    const QuantisedVote& how, Wire& wire) {
  const Communicator::Scope scope(comm, concat("quantised_vote, bucket ", bucket.index));
  if (how.form == QuantisedForm::kSharded) return run_sharded(comm, bucket, ctx, how, wire);
  run_direct(comm, bucket, ctx, how, wire);
}

Cost quantised_cost(const Bucket& bucket, int rank, const QuantisedVote& how) {
  const std::size_t n = bucket.shards.size();
  Cost cost;
  if (how.form == QuantisedForm::kDirect) {
    const auto world = static_cast<int>(n);
    const auto width = static_cast<std::size_t>(accumulator_bits(world, how.bits) / 8);
    cost.exact = cost.bound = n == 1;
    // sizes are compared before the sum; then a ring, its two halves
    const std::size_t part = width * ((bucket.size() + n - 1) / n);
    cost.bytes_up = (n - 1) * (RollCallFrame(bucket).bytes + 8 + part);
    cost.bytes_down = (n - 1) * part;
    return cost;
  }
  for (std::size_t j = 0; j < n; ++j) {
    if (static_cast<int>(j) != rank) cost.bytes_up += LevelFrame(bucket.shards[j], how.bits).bytes;
  }
  const Shard& mine = bucket.shards[static_cast<std::size_t>(rank)];
  cost.bytes_down = (n - 1) * VoteFrame(mine, how.tie == Tie::kZero).bytes;
  return cost;
}

// Every frame goes to all but its owner, or comes from all of them.
std::uint64_t quantised_total(const Bucket& bucket, const QuantisedVote& how) {
  const std::size_t n = bucket.shards.size();
  if (how.form == QuantisedForm::kDirect) return n * quantised_cost(bucket, 0, how).bytes();
  std::uint64_t frames = 0;
  for (const Shard& shard : bucket.shards) {
    frames += LevelFrame(shard, how.bits).bytes + VoteFrame(shard, how.tie == Tie::kZero).bytes;
  }
  return (n - 1) * frames;
}

QuantisedForm cheaper_form(const Bucket& bucket, QuantisedVote how) {
  how.form = QuantisedForm::kSharded;
  const std::uint64_t sharded = quantised_total(bucket, how);
  how.form = QuantisedForm::kDirect;
  return quantised_total(bucket, how) < sharded ? QuantisedForm::kDirect : QuantisedForm::kSharded;
}

}  // namespace pride::exchange
