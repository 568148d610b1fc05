// Distributed Lion, majority vote; and the votes of Signum and with Muon's direction.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo); Signum: Bernstein et al. 2018,
//           arXiv:1810.05291, Algorithm 1 (majority vote).
// Cost      1 bit up and 1 bit down per coordinate (2 down with tie = zero), plus frames.
// State     m: momentum (n) float32, or bfloat16 (momentum_dtype), each write rounded to nearest;
//           local, never sent. dlion-muon with every > 1: factor (n), Newton-Schulz's, local.
// Deviates  zeros, ties and unused tensors: see docs/wire_format.md. Weight decay is decoupled.
#include "methods/dlion.h"
#include "methods/registry.h"
#include "methods/sign_counts.h"
#include "methods/zeros.h"

namespace pride::methods {

// Worker i: delta_i = sign(beta1 m_i + (1-beta1) g_i);  m_i = beta2 m_i + (1-beta2) g_i
void SignVote::encode(const Bucket&, const StepContext& ctx, Flight& flight) {
  encode_signs(ctx, flight);
  const bool single_voter = ctx.voters == 1 && ctx.weights.empty();
  if (tie_ == Tie::kZero || single_voter) return;  // no ties to decide
  copy_tie_bits(space_, flight.parts[0].shards, ctx, muon(), flight.wire(0));
}

// Server: Delta = sign(sum of delta_i). The sum is a count if ranks have weights, or if nodes have
// counted first (FrameRole::kPartial).
void SignVote::serve(const Part&, const Shard& shard, const VoterFrames& voters,
                     const SharedContext& shared, Reply& reply) const {
  if (reply.role == FrameRole::kPartial) return count_node(shard, voters, shared, reply);
  if (voters.role == FrameRole::kUp && voters.weights.empty()) {
    return serve_vote(shard, voters, shared, tie_, reply.head, muon());
  }
  SignCounts(shard, voters, shared.votes(), node_votes(shared))
      .write_vote(shared, tie_, reply.head, muon());
}

// All workers: x = (1 - lr wd) x - lr Delta
void SignVote::apply(const Bucket&, const Flight& flight, const StepContext& ctx, View x) {
  upload_results(flight);
  for (std::size_t j = 0; const Shard& shard : flight.parts[0].shards) {
    const auto* result = flight.wire(0).down[j++].span().data();
    apply_vote(space_, shard, VoteView(result, shard, tie_ == Tie::kZero), ctx, x, muon());
  }
}

// Delta = sign(sum of delta_i)
void serve_vote(const Shard& shard, const VoterFrames& voters, const SharedContext& shared, Tie tie,
                std::span<std::byte> result, const OrthogonalBlend* muon) {
  const VoteView out(result.data(), shard, tie == Tie::kZero);
  mark_unused_by_all(voters.frames, shard, out.unused);
  std::vector<const std::uint64_t*> rows;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& p = shard.pieces[k];
    rows.clear();
    for (const Frame& frame : voters.frames) {
      const SignView view(frame.head.data(), shard);
      if (!bit_at(view.unused, k)) rows.push_back(view.signs.data() + p.first_word);
    }
    const auto positive = words_of(out.positive, p);
    if (tie == Tie::kZero) {
      kernels::vote_ternary(rows, positive, words_of(out.nonzero, p));
    } else if (voters.sees_parameters(shared)) {
      kernels::vote(rows, tie_bits_of(shared, p, step_scale(muon, p.tensor), voters.cells),
                    positive);
    } else {
      kernels::vote(rows, tie_bits_of(shared, rows), positive);
    }
  }
}

// x = (1 - lr wd) x - lr Delta
void apply_vote(Space& space, const Shard& shard, const VoteView<const std::byte>& vote,
                const StepContext& ctx, View x, const OrthogonalBlend* muon) {
  const auto positive = space.upload(vote.positive), nonzero = space.upload(vote.nonzero);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& p = shard.pieces[k];
    const kernels::Step step = step_of(p, ctx, muon);
    const Floats values = x.of(p);
    if (bit_at(vote.unused, k)) {
      space.run(kernels::ApplyDecay{step.decay.same, values});
    } else if (nonzero.empty()) {
      space.run(kernels::ApplySigns{words_of(positive, p), step, values});
    } else {
      space.run(kernels::ApplyTernary{words_of(positive, p), words_of(nonzero, p), step, values});
    }
  }
}

Protocol SignVote::protocol(const SharedContext&) const { return signs_protocol(); }

FrameKind SignVote::result_frames(int, Route) const { return vote_frames(tie_ == Tie::kZero); }

namespace {

template <BlendOf kBlend, bool kMuon>
std::unique_ptr<Method> make_vote(const MethodContext& ctx) {
  return std::make_unique<SignVote>(ctx, kBlend, kMuon);
}

// The device copies two bits per coordinate of a ternary result.
void set_tie(const OptionValues& options, MethodInfo& info) {
  if (tie_option(options) == Tie::kZero) info.link_bits_down = 2;
}

}  // namespace

extern const MethodEntry kDistributedLionVote = {"dlion-vote", make_vote<lion_blend, false>,
                                                 info_of<dlion_info, false>, set_tie};
extern const MethodEntry kDistributedMuonVote = {"dlion-muon", make_vote<lion_blend, true>,
                                                 info_of<muon_info, false>, set_tie,
                                                 OrthogonalBlend::host_only};
extern const MethodEntry kSignumVote = {"signum-vote", make_vote<signum_blend, false>,
                                        info_of<signum_info, false>, set_tie};

}  // namespace pride::methods
