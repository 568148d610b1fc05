// Votes of dlion-muon on a part of the coordinates in each step.
// SPDX-License-Identifier: Apache-2.0
// Source    the direction, the momentum and the vote are those of dlion-muon (dlion_vote.cpp).
//           Turns of coordinates: no paper combines them with votes.
// Cost      1/turns bits up and down per coordinate, plus frames.
// State     that of dlion-muon.
// Deviates  a coordinate moves only in its turn, by the rate of `turns` steps. The bits of zeros
//           and ties count cycles of all turns as exchanges.
#include <algorithm>
#include <bit>

#include "codecs/signs.h"
#include "codecs/turn_signs.h"
#include "methods/dlion.h"
#include "methods/registry.h"
#include "methods/sign_counts.h"
#include "pride/error.h"

namespace pride::methods {

namespace {

Turns turns_option(const OptionValues& options) {
  const auto n = options.whole("turns", 1, Turns::kMost);
  PRIDE_CHECK(std::has_single_bit(static_cast<std::uint64_t>(n)), options.method(),
              ": option turns = '", options.text("turns"), "': must be 1, 2, 4, 8, 16, 32 or 64");
  return Turns(static_cast<int>(n));
}

// For encode() and apply(): tie = zero lets apply() read results in which most coordinates stay.
MethodContext blend_context(const MethodContext& ctx) {
  MethodContext own = ctx;
  own.nodes = {};
  own.options.set("tie", "zero");
  own.options.set("route", "sharded");
  own.options.set("bandwidth_delay_bytes", "0");
  return own;
}

// A frame that no rank sends.
std::span<std::byte> room_for(ByteBuffer& buffer, const FrameKind& kind, const Shard& shard) {
  buffer.resize(kind.bytes(shard));
  return buffer.span();
}

class TurnMuon final : public SignVote {
 public:
  TurnMuon(const MethodContext& ctx)
      : SignVote(blend_context(ctx), lion_blend, true), turns_(turns_option(ctx.options)) {}

  Protocol protocol(const SharedContext& shared) const override {
    Protocol protocol = SignVote::protocol(shared);
    protocol.hierarchical = false;
    return protocol;
  }

  std::vector<Part> parts(const Bucket& b, const SharedContext&) const override {
    std::vector<Part> parts;
    parts.push_back(sharded_part(b, turn_frames(Codec::kTurnSigns, turns_),
                                 turn_frames(Codec::kTurnVote, turns_)));
    return parts;
  }

  // Encodes the signs of all coordinates, in a wire behind the part's. Only those of the turn are
  // sent.
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    flight.wires.resize(2);
    Flight whole = whole_of(b, ctx, &Part::down, std::move(flight.wires[1]));
    whole.grad = flight.grad;
    const auto scalars = of_turn(ctx.groups);
    StepContext exchange = ctx;
    exchange.step = ctx.step / turns_.n();
    exchange.groups = scalars;
    SignVote::encode(b, exchange, whole);
    flight.wires[1] = std::move(whole.wires[0]);
    copy_tie_bits(space_, flight.parts[0].shards, exchange, muon(), flight.wires[0]);
    flight.pack = [this, step = ctx.step](Flight& encoded) { pack(step, encoded); };
  }

  // A vote on all coordinates: every rank's bit is 0 for a coordinate that does not have its turn.
  void serve(const Part&, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    const FrameKind signs = sign_frames(), vote = vote_frames(false);
    std::vector<ByteBuffer> frames(voters.frames.size());
    std::vector<Frame> views;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const TurnView sent(voters.frames[i].head.data(), shard, turns_);
      const SignView all(room_for(frames[i], signs, shard).data(), shard);
      std::ranges::copy(sent.unused, all.unused.begin());
      turns_.unpack(shard, sent.packed, shared.step, all.signs);
      views.push_back({std::as_const(frames[i]).span()});
    }
    ByteBuffer result;
    const auto head = room_for(result, vote, shard);
    const auto scalars = of_turn(shared.groups);
    SharedContext exchange = shared;
    exchange.step = shared.step / turns_.n();
    exchange.groups = scalars;
    const VoterFrames frames_of_all{FrameRole::kUp, views, voters.where, voters.weights,
                                    voters.cells};
    if (voters.weights.empty()) {
      serve_vote(shard, frames_of_all, exchange, Tie::kHash, head, muon());
    } else {
      SignCounts(shard, frames_of_all, shared.votes(), 1)
          .write_vote(exchange, Tie::kHash, head, muon());
    }
    const VoteView all(head.data(), shard, false);
    const TurnView out(reply.head.data(), shard, turns_);
    std::ranges::copy(all.unused, out.unused.begin());
    turns_.pack(shard, all.positive, shared.step, out.packed);
  }

  // x = (1 - lr wd) x, minus turns lr Delta for coordinates that have their turn
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) override {
    const std::size_t bucket = space_.is_host() ? 0 : flight.parts[0].bucket;
    votes_.resize(std::max(votes_.size(), bucket + 1));
    Votes& votes = votes_[bucket];
    space_.wait(votes.applied);
    Flight whole = whole_of(b, ctx, &Part::up, std::move(votes.wire));
    for (std::size_t j = 0; j < b.shards.size(); ++j) {
      const Shard& shard = b.shards[j];
      const TurnView sent(flight.wire(0).down[j].span().data(), shard, turns_);
      const VoteView all(whole.wires[0].down[j].span().data(), shard, true);
      std::ranges::copy(sent.unused, all.unused.begin());
      turns_.unpack(shard, sent.packed, ctx.step, all.positive);
      turns_.unpack(shard, every_bit(sent.packed.size()), ctx.step, all.nonzero);
    }
    const auto scalars = of_turn(ctx.groups);
    StepContext turn = ctx;
    turn.groups = scalars;
    SignVote::apply(b, whole, turn, x);
    votes = {std::move(whole.wires[0]), space_.record()};
    facts_.frame_bytes = 0;
    for (const Votes& all : votes_) facts_.frame_bytes += all.wire.capacity_bytes();
  }

 private:
  void pack(std::int64_t step, Flight& flight) const {
    Wire &wire = flight.wires[0], &whole = flight.wires[1];
    wire.fault_word() = whole.fault_word();
    const auto& shards = flight.parts[0].shards;
    for (std::size_t j = 0; j < shards.size(); ++j) {
      turns_.pack(shards[j], SignView(whole.up[j].span().data(), shards[j]).signs, step,
                  TurnView(wire.up[j].span().data(), shards[j], turns_).packed);
    }
  }
  // Frames of all coordinates, in one direction.
  Flight whole_of(const Bucket& b, const StepContext& ctx, FrameKind Part::*other, Wire&& wire) {
    Flight whole;
    whole.parts = SignVote::parts(b, ctx);
    (whole.parts[0].*other).bytes = nullptr;
    whole.wires.push_back(std::move(wire));
    size_frames(whole.parts[0], ctx, whole.wires[0]);
    return whole;
  }
  // The scalars of a coordinate's turn.
  std::vector<StepScalars> of_turn(std::span<const StepScalars> groups) const {
    std::vector<StepScalars> scalars(groups.begin(), groups.end());
    for (StepScalars& s : scalars) s.lr *= static_cast<float>(turns_.n());
    return scalars;
  }
  std::span<const std::uint64_t> every_bit(std::size_t n_words) {
    ones_.resize(std::max(ones_.size(), n_words), ~std::uint64_t{0});
    return std::span(ones_).first(n_words);
  }

  Turns turns_;
  struct Votes {
    Wire wire;                 // frames of all coordinates
    Space::Event applied = 0;  // then a device has read them
  };
  std::vector<Votes> votes_;  // by bucket, on the host one
  std::vector<std::uint64_t> ones_;
};

MethodInfo turn_info(int world) {
  MethodInfo info = muon_info(world, false);
  info.title = "Distributed Lion with Muon's direction, votes on coordinates in turn";
  info.default_beta2 = 0.9;
  std::erase_if(info.options, [](const MethodOption& o) {
    return o.name == "tie" || o.name == "route" || o.name == "bandwidth_delay_bytes";
  });
  info.options.insert(info.options.begin(),
                      {"turns", "16",
                       "steps in which each coordinate is voted on once: 1, 2, 4, 8, 16, 32 or 64; "
                       "it then moves by that many learning rates"});
  return info;
}

// The signs of all coordinates leave a device, and come back as votes that may be 0.
void set_turns(const OptionValues& options, MethodInfo& info) {
  const int turns = turns_option(options).n();
  info.link_bits_up = 1;
  info.link_bits_down = 2;
  info.bits_up /= turns;
  info.bits_down /= turns;
}

}  // namespace

extern const MethodEntry kTurnMuon = {"turn-muon", make<TurnMuon>, turn_info, set_turns,
                                      OrthogonalBlend::host_only};

}  // namespace pride::methods
