// Distributed Lion, average of signs; and the averages of Signum and with Muon's direction.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (Avg); Signum: D-SIGNUM in Section 5.
// Cost      1 bit up per coordinate; down about log2(N+1) (count_bits), plus frames.
// State     that of dlion-vote.
// Deviates  zeros and unused tensors: see docs/wire_format.md. Counts of + are sent, packed into
//           32-bit words or as bit planes. Weight decay is decoupled.
#include <algorithm>

#include "methods/registry.h"
#include "methods/sign_counts.h"

namespace pride::methods {
namespace {

// x = (1 - lr wd) x - lr S / N, with S = 2c - users and c votes for +
void apply_average(Space& space, const Shard& shard, const CountView<const std::byte>& counts,
                   const StepContext& ctx, View x, const OrthogonalBlend* muon) {
  const auto all_packed = space.upload(counts.packed);
  const auto all_planes = space.upload(counts.planes);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& p = shard.pieces[k];
    const kernels::Step step = step_of(p, ctx, muon);
    const auto part = x.of(p);
    const int users = counts.users[k];
    if (users == 0) {
      space.run(kernels::ApplyDecay{step.decay.same, part});
      continue;
    }
    const std::size_t packed = counts.packed_words - std::min(counts.packed_words, p.first_word);
    const std::size_t n_packed = std::min(part.size(), 64 * packed);
    if (n_packed > 0) {
      space.run(kernels::ApplyPackedCounts{all_packed, counts.radix, p.first_word, users,
                                           ctx.votes(), step, part.first(n_packed)});
    }
    if (n_packed < part.size()) {
      const std::size_t first = p.first_word + n_packed / 64 - counts.packed_words;
      space.run(kernels::ApplyCounts{all_planes.subspan(first), counts.n_planes, counts.plane_words,
                                     users, ctx.votes(), step, part.subspan(n_packed)});
    }
  }
}

template <BlendOf kBlend, bool kMuon>
class DistributedLionAverage final : public SignMethod {
 public:
  DistributedLionAverage(const MethodContext& ctx)
      : SignMethod(ctx, kBlend, kMuon),
        counts_(ctx.options.word("counts", {"packed", "planes"}) == 1 ? CountForm::kPlanes
                                                                      : CountForm::kPacked) {}

  Protocol protocol(const SharedContext&) const override { return signs_protocol(kMaxWorld); }
  FrameKind result_frames(int votes, Route route) const override {
    return count_frames(votes, form(route));
  }
  void encode(const Bucket&, const StepContext& ctx, Flight& flight) override {
    encode_signs(ctx, flight);
  }

  // S = sum of delta_i
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    if (reply.role == FrameRole::kPartial) return count_node(shard, voters, shared, reply);
    SignCounts(shard, voters, shared.votes(), node_votes(shared))
        .write_counts(form(part.route), reply.head);
  }

  void apply(const Bucket&, const Flight& flight, const StepContext& ctx, View x) override {
    upload_results(flight);
    const Part& part = flight.parts[0];
    for (std::size_t j = 0; const Shard& shard : part.shards) {
      const CountView counts(flight.wire(0).down[j++].span().data(), shard, ctx.votes(),
                             form(part.route));
      apply_average(space_, shard, counts, ctx, x, muon());
    }
  }

 private:
  CountForm form(Route route) const {
    return route == Route::kOneShot ? CountForm::kPlanes : counts_;
  }
  CountForm counts_;
};

}  // namespace

extern const MethodEntry kDistributedLionAverage = {
    "dlion-avg", make<DistributedLionAverage<lion_blend, false>>, info_of<dlion_info, true>};
extern const MethodEntry kDistributedMuonAverage = {
    "dlion-muon-avg", make<DistributedLionAverage<lion_blend, true>>, info_of<muon_info, true>,
    nullptr, OrthogonalBlend::host_only};
extern const MethodEntry kSignumAverage = {
    "signum-avg", make<DistributedLionAverage<signum_blend, false>>, info_of<signum_info, true>};

}  // namespace pride::methods
