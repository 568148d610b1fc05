// Lion Cub.
// SPDX-License-Identifier: Apache-2.0
// Source    Ishikawa et al. 2024, arXiv:2411.16462: p-bit exchange, quantiser, momentum sync.
// Cost      `bits` up and 1 bit down per coordinate (2 with tie = zero), plus frames;
//           2 (N-1)/N of each synchronised momentum per interval.
// State     m: momentum (n) float32, local to each rank except where it is synchronised;
//           with feedback = yes also e: the quantisation error (n) float32.
// Deviates  scales shared by all ranks (the public code's are each rank's own);
//           the largest level is 2^(p-1) - 1 at any N (there divided by N);
//           selection, period and format of synchronised momenta are not published: options.
#include "methods/lion_cub.h"

#include <algorithm>
#include <limits>

#include "codecs/hash_keys.h"
#include "codecs/levels.h"
#include "codecs/scaled_signs.h"
#include "methods/registry.h"
#include "methods/zeros.h"
#include "pride/choose_tensors.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

// The narrowest integers that hold the sum of `voters` largest levels.
Sum sum_type(int voters, int bits) {
  const std::int64_t most = std::int64_t{voters} * kernels::largest_level(bits);
  if (most <= std::numeric_limits<std::int8_t>::max()) return Sum::kInt8;
  return most <= std::numeric_limits<std::int16_t>::max() ? Sum::kInt16 : Sum::kInt32;
}

// Calls body with the numbers of a native sum, as spans of their own type.
template <typename Byte, typename Body>
void with_integers(Sum type, std::span<Byte> bytes, const Body& body) {
  const auto as = [&]<typename T>(T) {
    using Number = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    body(std::span(reinterpret_cast<Number*>(bytes.data()), bytes.size() / sizeof(T)));
  };
  if (type == Sum::kInt8) return as(std::int8_t{});
  if (type == Sum::kInt16) return as(std::int16_t{});
  as(std::int32_t{});
}

}  // namespace

std::size_t LionCub::width_of(Sum type) {
  return type == Sum::kInt8 ? 1 : type == Sum::kInt16 ? 2 : 4;
}

LionCub::LionCub(const MethodContext& ctx)
    : layout_(ctx.layout),
      space_(ctx.space),
      tie_(tie_option(ctx.options)),
      route_(static_cast<RouteChoice>(ctx.options.word("route", {"auto", "sharded", "native"}))),
      quantiser_(ctx),
      bits_(static_cast<int>(ctx.options.whole("bits", 1, kernels::kMaxLevelBits))),
      sync_(ctx.layout,
            choose_tensors(ctx.options.method() + ": option sync", ctx.layout,
                           ctx.options.text("sync")),
            SyncSchedule(ctx.options),
            value_format(ctx.options.method(), ctx.options.text("sync_format"))),
      m_(state_.add("m", StateKind::kLocal)) {
  if (!ctx.options.yes_no("feedback")) return;
  PRIDE_CHECK(bits_ > 1, ctx.options.method(),
              ": option feedback = yes with bits = 1: a sign has no scale "
              "that the error could be measured in; choose bits = 2 or more, or signsgd-ef");
  e_ = &state_.add("e", StateKind::kLocal);
  next_ = FlatBuffer::room(layout_.flat_size(), space_);
}

// --- Protocol: votes; momenta that are due. ------------------------------------------------------

Protocol LionCub::protocol(const SharedContext&) const {
  Protocol p;
  p.alignment = quantiser_.needs_whole_gradient() ? kAlignment : kScaleBlock;
  p.whole_gradient = bits_ > 1 && quantiser_.needs_whole_gradient();
  if (p.whole_gradient) p.preliminary = quantiser_.preliminary();
  p.replays = !e_ && sync_.empty();
  p.same_apply = p.replays;
  return p;
}

std::vector<Part> LionCub::parts(const Bucket& b, const SharedContext& shared) const {
  std::vector<Part> parts = vote_parts(b, shared.central ? 1 : shared.voters);
  if (auto momenta = sync_.part(b, shared)) {
    momenta->id = kMomenta;
    parts.push_back(std::move(*momenta));
  }
  return parts;
}

// The route that sends fewer bytes, summed over all ranks.
std::vector<Part> LionCub::vote_parts(const Bucket& b, int voters) const {
  const FrameKind votes = vote_frames(tie_ == Tie::kZero);
  std::vector<Part> sharded, native;
  sharded.push_back(sharded_part(b, bits_ == 1 ? sign_frames() : level_frames(bits_), votes));
  if (bits_ == 1 || route_ == RouteChoice::kSharded) return sharded;
  const FrameKind participation = unused_bits_frames(Codec::kParticipation, "participation");
  native.push_back(one_shot_part(b, participation, participation));
  native.push_back(native_part(b, sum_type(voters, bits_)));
  native.back().id = kSum;
  native.back().down = votes;
  const bool fewer = total_bytes(native, voters) < total_bytes(sharded, voters);
  return route_ == RouteChoice::kNative || fewer ? std::move(native) : std::move(sharded);
}

// --- Worker: levels of the blend, momenta that are due. ------------------------------------------

void LionCub::encode_preliminary(const StepContext& ctx, GradientView g, Wire& preliminary) {
  const auto e = e_ ? std::span<const float>(e_->span()) : std::span<const float>();
  quantiser_.encode_preliminary(space_, ctx, g, m_.span(), e, preliminary);
  if (!quantiser_.preliminary()) quantiser_.place_steps(space_, bits_);
}

void LionCub::take_preliminary(const StepContext&, const Wire& preliminary) {
  quantiser_.take_preliminary(preliminary);
  quantiser_.place_steps(space_, bits_);
}

void LionCub::encode(const Bucket& b, const StepContext& ctx, Flight& flight) {
  space_.begin_frames();
  if (bits_ > 1) {
    encode_levels(b, ctx, flight);
  } else {
    encode_signs(space_, b.shards, flight.grad, ctx, lion_blend, m_, *flight.find(kVotes));
  }
  if (tie_ == Tie::kHash) {
    const int votes = flight.find(kSum) != nullptr ? kSum : kVotes;
    copy_tie_bits(space_, flight.part(votes).shards, ctx, nullptr, *flight.find(votes));
  }
  if (Wire* momenta = flight.find(kMomenta)) {
    sync_.encode(space_, b, ctx, m_.span(), flight.part(kMomenta), *momenta);
  }
}

// A native sum's integers as words: a bucket has a multiple of 64 coordinates.
std::span<std::uint64_t> LionCub::words_of_sums(Wire& sums) {
  const auto bytes = sums.room.span();
  return {reinterpret_cast<std::uint64_t*>(bytes.data()), bytes.size() / sizeof(std::uint64_t)};
}

kernels::LevelLines LionCub::integers_of(const Bucket& b, const Piece& p, Sum type,
                                         std::span<std::uint64_t> words) const {
  const std::size_t width = width_of(type);
  return {
      .shape = {0, bits_},
      .integers = std::as_writable_bytes(words).subspan(width * (p.begin - b.begin), width * p.n()),
      .width = width};
}

// Writes levels into the lines of frames, or as the integers of a native sum.
void LionCub::encode_levels(const Bucket& b, const StepContext& ctx, Flight& flight) {
  Wire& wire = *flight.find(kVotes);
  Wire* sums = flight.find(kSum);
  if (!sums) space_.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space_.watch(wire.fault_word());
  std::span<std::uint64_t> integers;
  if (sums) {
    sums->room.resize(width_of(flight.part(kSum).sum) * b.size(), *ctx.memory);
    integers = space_.stage(words_of_sums(*sums));
    space_.clear(integers);  // unused tensors and padding add 0
  }
  for (std::size_t j = 0; j < b.shards.size(); ++j) {
    const Shard& shard = b.shards[j];
    kernels::LevelLines lines;
    std::span<std::uint64_t> frame;
    if (!sums) {
      const LevelView view(wire.up[j].span().data(), shard, bits_);
      frame = view.lines;
      lines = {.shape = view.shape, .words = space_.stage(frame)};
      const bool any_unused = std::ranges::any_of(
          shard.pieces, [&](const Piece& p) { return ctx.is_unused(p.tensor); });
      if (any_unused) space_.clear(lines.words);
    }
    for (const Piece& p : shard.pieces) {
      if (ctx.is_unused(p.tensor)) continue;
      lines.first_word = p.first_word;
      lines.n_words = p.n_words();
      Quantiser::Buffers buffers{
          .g = flight.grad, .m = m_.span().subspan(p.begin, p.n()), .e = {}, .e_next = {}};
      if (e_) {
        buffers.e = e_->span().subspan(p.begin, p.n());
        buffers.e_next = next_.span().subspan(p.begin, p.n());
      }
      quantiser_.encode(space_, p, ctx, buffers,
                        sums ? integers_of(b, p, flight.part(kSum).sum, integers) : lines,
                        {watched, static_cast<std::uint32_t>(p.tensor)});
    }
    if (!sums) space_.send(lines.words, frame);
  }
  if (sums) space_.send(integers, words_of_sums(*sums));
  space_.report(watched, wire.fault_word());
}

// --- Server. -------------------------------------------------------------------------------------

void LionCub::serve(const Part& part, const Shard& shard, const VoterFrames& voters,
                    const SharedContext& shared, Reply& reply) const {
  switch (part.id) {
    case kVotes:
      if (part.up.codec == Codec::kSign) {
        return serve_vote(shard, voters, shared, tie_, reply.head);
      }
      mark_unused_by_all(voters.frames, shard, unused_bits(reply.head.data(), shard));
      if (part.up.codec == Codec::kLevels) serve_levels(shard, voters, shared, reply);
      return;
    case kSum:
      return serve_sums(shard, voters, shared, part.sum, reply);
    case kMomenta:
      return sync_.serve(shard, voters, shared, reply);
    default:
      quantiser_.serve(voters, reply);
  }
}

// Levels of 0 have no bits, so a coordinator has hashes instead.
kernels::SharedBits LionCub::tie_bits_of_levels(const Piece& p, const VoterFrames& voters,
                                                const SharedContext& shared) const {
  if (voters.sees_parameters(shared)) return tie_bits_of(shared, p, 1, voters.cells);
  PRIDE_CHECK(shared.central, "bits of ties need the parameters of the step; the server has none");
  return tie_words(shared.seed, shared.step, p.in_whole(p.begin));
}

// The sign of the exact sum of levels.
void LionCub::serve_levels(const Shard& shard, const VoterFrames& voters,
                           const SharedContext& shared, Reply& reply) const {
  const VoteView out(reply.head.data(), shard, tie_ == Tie::kZero);
  bool good = true;
  for (const Run& run : runs_of(shard, voters.frames)) {
    std::vector<const std::uint64_t*> lines;
    for (const std::size_t i : run.frames) {
      lines.push_back(LevelView(voters.frames[i].head.data(), shard, bits_).lines.data());
    }
    kernels::LevelRows rows{lines, {shard.n_words(), bits_}, run.first_word};
    if (tie_ == Tie::kZero) {
      good &= kernels::vote_levels_ternary(rows, out.positive.subspan(run.first_word, run.n_words),
                                           out.nonzero.subspan(run.first_word, run.n_words));
      continue;
    }
    for (const Piece& p : shard.pieces) {
      if (p.first_word < run.first_word || p.first_word >= run.first_word + run.n_words) continue;
      rows.first = p.first_word;
      good &= kernels::vote_levels(rows, tie_bits_of_levels(p, voters, shared),
                                   words_of(out.positive, p));
    }
  }
  for (std::size_t i = 0; i < voters.frames.size() && !good; ++i) {
    check_codes({voters.frames[i], shard, static_cast<int>(i), voters.where}, bits_);
  }
}

// The same for integers added by the transport. An overflow or a missing rank is detected only if a
// sum leaves its range.
void LionCub::serve_sums(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                         Sum type, Reply& reply) const {
  const std::int64_t most = std::int64_t{shared.voters} * kernels::largest_level(bits_);
  std::vector<std::int32_t> sums;
  with_integers(type, reply.body, [&](auto integers) {
    for (const std::int64_t s : integers) {
      if (s >= -most && s <= most) continue;
      throw CommError(concat("the transport's sum of levels is ", s, ", which ", shared.voters,
                             " ranks cannot have"));
    }
    sums.assign(integers.begin(), integers.end());
  });
  const VoteView out(reply.head.data(), shard, tie_ == Tie::kZero);
  std::ranges::fill(out.unused, std::uint64_t{0});  // the participation frames have them
  for (const Piece& p : shard.pieces) {
    kernels::vote_sums(std::span(sums).subspan(p.begin - shard.begin, p.n()),
                       tie_bits_of_levels(p, voters, shared), words_of(out.positive, p),
                       words_of(out.nonzero, p));
  }
}

// --- Worker: x = (1 - lr wd) x - lr vote;  m = mean where it was due. ----------------------------

void LionCub::apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) {
  const Wire& wire = *flight.find(kVotes);
  const std::span<const Shard> shards = flight.part(kVotes).shards;
  const Wire* sums = flight.find(kSum);
  const Wire& results = sums ? *sums : wire;
  space_.begin_frames();
  space_.upload_block(results.down_block.span());
  for (std::size_t j = 0; j < shards.size(); ++j) {
    VoteView vote(results.down[j].span().data(), shards[j], tie_ == Tie::kZero);
    vote.unused = unused_bits(wire.down[j].span().data(), shards[j]);
    apply_vote(space_, shards[j], vote, ctx, x);
  }
  if (const Wire* momenta = flight.find(kMomenta)) {
    sync_.apply(space_, b, ctx, flight.part(kMomenta), *momenta, m_.span());
  }
  for (const Shard& shard : b.shards) {
    for (const Piece& p : shard.pieces) {
      if (!e_ || ctx.is_unused(p.tensor)) continue;
      space_.run(
          kernels::Copy{next_.span().subspan(p.begin, p.n()), e_->span().subspan(p.begin, p.n())});
    }
  }
}

}  // namespace pride::methods
