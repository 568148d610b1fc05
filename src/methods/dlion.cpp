// Distributed Lion, majority vote and average; and Signum in the same two forms.
// SPDX-License-Identifier: Apache-2.0
// Source    Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo, Avg); Signum: Bernstein et al.
//           2018, arXiv:1802.04434, Algorithm 2, and arXiv:1810.05291, Algorithm 1 (majority vote).
// Cost      1 bit up per coordinate; down 1 bit (vote; 2 with tie = zero) or about log2(N+1)
//           (average: count_bits), plus frames.
// State     m: momentum (n) float32, or bfloat16 (momentum_dtype), where each write rounds to
//           nearest; local to each rank, never sent. dlion-muon with every > 1 also has
//           factor: Newton-Schulz factors of the matrices (n), local.
// Deviates  zeros, ties and unused tensors: see docs/wire_format.md. The average sends counts of +,
//           packed into 32-bit words or as bit planes. Weight decay is decoupled.
#include "methods/dlion.h"

#include <algorithm>
#include <limits>

#include "methods/options.h"
#include "methods/registry.h"
#include "methods/sign_counts.h"
#include "methods/zeros.h"
#include "pride/error.h"

namespace pride::methods {

// --- Server: S = sum of delta_i;  Delta = sign(S), or S / N. -------------------------------------

void serve_vote(const Shard& shard, const Ballots& up, const Round& round, Tie tie,
                std::span<std::byte> result, const OrthogonalBlend* matrices) {
  const VoteView out(result.data(), shard, tie == Tie::kZero);
  combine_unused(up.frames, shard, out.unused);
  std::vector<const std::uint64_t*> rows;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& p = shard.pieces[k];
    rows.clear();
    for (const Frame& frame : up.frames) {
      const SignView view(frame.head.data(), shard);
      if (!bit_at(view.unused, k)) rows.push_back(view.signs.data() + p.first_word);
    }
    const auto positive = words_of(out.positive, p);
    if (tie == Tie::kZero) {
      kernels::vote_ternary(rows, positive, words_of(out.nonzero, p));
    } else if (up.knows(round)) {
      kernels::vote(rows, ties_of(round, p, step_scale(matrices, p.tensor), up.cells), positive);
    } else {
      kernels::vote(rows, ties_of(round, rows), positive);
    }
  }
}

// --- Worker: x = (1 - lr wd) x - lr Delta. -------------------------------------------------------

namespace {

kernels::Step step_of(const Piece& p, const StepContext& ctx, const OrthogonalBlend* matrices) {
  const StepScalars s = ctx.scalars_of(p);
  return {s.decay, s.lr * step_scale(matrices, p.tensor)};
}

}  // namespace

void apply_vote(Space& space, const Shard& shard, const VoteView<const std::byte>& vote,
                const StepContext& ctx, View x, const OrthogonalBlend* matrices) {
  const auto positive = space.bring(vote.positive), nonzero = space.bring(vote.nonzero);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& p = shard.pieces[k];
    const kernels::Step step = step_of(p, ctx, matrices);
    const auto part = x.of(p);
    if (bit_at(vote.unused, k)) {
      space.apply_decay(step.decay, part);
    } else if (nonzero.empty()) {
      space.apply_signs(words_of(positive, p), step, part);
    } else {
      space.apply_ternary(words_of(positive, p), words_of(nonzero, p), step, part);
    }
  }
}

namespace {

// S = 2c - users, with c votes for +
void apply_average(Space& space, const Shard& shard, const CountView<const std::byte>& counts,
                   const StepContext& ctx, View x, const OrthogonalBlend* matrices) {
  const auto all_packed = space.bring(counts.packed);
  const auto all_planes = space.bring(counts.planes);
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& p = shard.pieces[k];
    const kernels::Step step = step_of(p, ctx, matrices);
    const auto part = x.of(p);
    const int users = counts.users[k];
    if (users == 0) {
      space.apply_decay(step.decay, part);
      continue;
    }
    const std::size_t packed = counts.packed_words - std::min(counts.packed_words, p.first_word);
    const std::size_t n_packed = std::min(part.size(), 64 * packed);
    if (n_packed > 0) {
      space.apply_packed_counts(all_packed, counts.radix, p.first_word, users, ctx.votes(), step,
                                part.first(n_packed));
    }
    if (n_packed < part.size()) {
      const std::size_t first = p.first_word + n_packed / 64 - counts.packed_words;
      space.apply_counts(all_planes.subspan(first), counts.n_planes, counts.plane_words, users,
                         ctx.votes(), step, part.subspan(n_packed));
    }
  }
}

// --- The method: a blend, a result, and a route for each bucket. ---------------------------------

enum class RouteChoice { kAuto, kSharded, kOneShot };
constexpr const char* kRoundBytes = "12500";  // default bandwidth-delay product: 100 us x 1 Gbit/s
constexpr std::int64_t kMostRoundBytes = std::int64_t{1} << 40;

class DistributedLion final : public SignMethod {
 public:
  DistributedLion(const std::string& name, const MethodContext& ctx, BlendOf blend, bool average,
                  bool muon)
      : layout_(ctx.layout),
        space_(ctx.space),
        blend_(blend),
        average_(average),
        tie_(average ? Tie::kHash : tie_option(name, ctx)),
        counts_(average && word_option(name, ctx, "counts", {"packed", "planes"}) == 1
                    ? CountForm::kPlanes
                    : CountForm::kPacked),
        choice_(static_cast<RouteChoice>(
            word_option(name, ctx, "route", {"auto", "sharded", "one-shot"}))),
        round_bytes_(
            static_cast<std::uint64_t>(whole_option(name, ctx, "round_bytes", 0, kMostRoundBytes))),
        nodes_(ctx.nodes),
        m_(state_.add("m", StateKind::kLocal, momentum_option(name, ctx))) {
    if (muon) matrices_ = std::make_unique<OrthogonalBlend>(name, ctx, state_, StateKind::kLocal);
    PRIDE_CHECK(choice_ != RouteChoice::kOneShot || !nodes_.hierarchical(), name,
                ": option route = one-shot is not supported with nodes: the hierarchical route is "
                "two-shot; choose auto or sharded");
  }

  Protocol protocol(const Round&) const override {
    return {.by_tensor = matrices_ != nullptr,
            .hierarchical = true,
            .most_votes = average_ ? kMaxWorld : std::numeric_limits<int>::max(),
            .replays = true,
            .same_apply = true};
  }

  // The route with the lower rounds * latency + bytes / rate, averaged over the ranks, with latency
  // * rate = round_bytes; one-shot if they are equal. All ranks choose the same.
  std::vector<Part> parts(const Bucket& b, const Round& round) const override {
    std::vector<Part> two_shots, one_shot;
    if (nodes_.hierarchical()) {
      two_shots.push_back(hierarchical_part(b, sign_frames(),
                                            count_frames(node_votes(round), CountForm::kPacked),
                                            result_frames(round.votes(), counts_)));
      return two_shots;
    }
    two_shots.push_back(sharded_part(b, sign_frames(), result_frames(round.votes(), counts_)));
    if (choice_ == RouteChoice::kSharded || round.voters == 1 || round.central) return two_shots;
    one_shot.push_back(one_shot_part(b, sign_frames(Codec::kAllSigns),
                                     result_frames(round.votes(), CountForm::kPlanes)));
    const bool faster = total_bytes(one_shot, round.voters) <=
                        total_bytes(two_shots, round.voters) +
                            static_cast<std::uint64_t>(round.voters) * round_bytes_;
    return choice_ == RouteChoice::kOneShot || faster ? std::move(one_shot) : std::move(two_shots);
  }

  void tensor_ready(std::size_t tensor, const StepContext& ctx, GradientView grad) override {
    if (ctx.is_unused(tensor) || !matrices_ || !matrices_->has(tensor)) return;
    const TensorSlot& slot = layout_.tensors()[tensor];
    matrices_->blend(tensor, ctx.step, blend_(ctx.scalars_of_group(slot.spec.group)),
                     grad.of(tensor, slot.offset, slot.offset + slot.n),
                     m_.of(slot.offset, slot.n));
  }

  double matrix_operations() const override { return matrices_ ? matrices_->operations() : 0; }
  std::vector<MatrixForm> matrices() const override {
    return matrices_ ? matrices_->forms() : std::vector<MatrixForm>();
  }
  void describe(MethodInfo& info) const override {
    if (tie_ == Tie::kZero) info.link_bits_down = 2;
  }

  void encode(const Bucket&, const StepContext& ctx, Flight& flight) override {
    encode_signs(space_, flight.parts[0].shards, flight.grad, ctx, blend_, m_, flight.wire(0),
                 matrices_.get());
    const bool one_sign = ctx.voters == 1 && ctx.weights.empty();  // which never ties
    if (!average_ && tie_ == Tie::kHash && !one_sign) {
      send_cells(space_, flight.parts[0].shards, ctx, matrices_.get(), flight.wire(0));
    }
  }

  const OrthogonalBlend* orthogonal() const noexcept override { return matrices_.get(); }

  void end_encode(const StepContext&) override {
    if (matrices_) matrices_->release();
  }

  // Signs to a vote or to counts; with nodes, signs to a node's counts, and these to the result.
  void serve(const Part& part, const Shard& shard, const Ballots& up, const Round& round,
             Reply& reply) const override {
    const bool of_node = &reply.kind == &part.partial, from_nodes = &up.kind == &part.partial;
    if (!average_ && !of_node && !from_nodes && up.weights.empty()) {
      return serve_vote(shard, up, round, tie_, reply.head, matrices_.get());
    }
    const int votes_each = node_votes(round);
    const SignCounts counts(shard, up, of_node ? votes_each : round.votes(), votes_each);
    if (of_node) {
      counts.write_counts(CountForm::kPacked, reply.head);
    } else if (average_) {
      counts.write_counts(form_of(part), reply.head);
    } else {
      counts.write_vote(round, tie_, reply.head, matrices_.get());
    }
  }

  void apply(const Bucket&, const Flight& flight, const StepContext& ctx, View x) override {
    const Part& part = flight.parts[0];
    space_.begin_frames();
    space_.bring_block(flight.wire(0).down_block.span());
    for (std::size_t j = 0; const Shard& shard : part.shards) {
      const auto* result = flight.wire(0).down[j++].span().data();
      if (average_) {
        apply_average(space_, shard, CountView(result, shard, ctx.votes(), form_of(part)), ctx, x,
                      matrices_.get());
      } else {
        apply_vote(space_, shard, VoteView(result, shard, tie_ == Tie::kZero), ctx, x,
                   matrices_.get());
      }
    }
  }

 private:
  CountForm form_of(const Part& part) const {
    return part.route == Route::kOneShot ? CountForm::kPlanes : counts_;
  }
  FrameKind result_frames(int votes, CountForm form) const {
    return average_ ? count_frames(votes, form) : vote_frames(tie_ == Tie::kZero);
  }
  // The most votes of a node: the partial counts of all nodes have the form for it.
  int node_votes(const Round& round) const {
    int most = 0;
    for (int h = 0; h < nodes_.count(); ++h) most = std::max(most, votes_of_node(round, nodes_, h));
    return most;
  }

  const Layout& layout_;
  Space& space_;
  BlendOf blend_;
  bool average_;
  Tie tie_;
  CountForm counts_;
  RouteChoice choice_;
  std::uint64_t round_bytes_;
  Nodes nodes_;
  std::unique_ptr<OrthogonalBlend> matrices_;  // of dlion-muon
  Stored m_;
};

// The sign of the new momentum is sent.
kernels::Blend signum_blend(const StepScalars& s) {
  return {s.beta1, s.one_minus_beta1, s.beta1, s.one_minus_beta1};
}

MethodInfo sign_info(int world, bool average, std::string title, std::string source) {
  MethodInfo info;
  info.title = std::move(title);
  info.source = std::move(source);
  info.bits_up = 1;
  info.bits_down = average ? count_bits(world, CountForm::kPacked) : 1;
  info.growth = average ? "log N" : "none";
  info.default_lr = 1e-4;
  info.on_device = true;
  const MethodOption counts = {
      "counts", "packed",
      "form of the counts sent down: 'packed' (to base N+1 if that takes fewer bits) or 'planes' "
      "(whole bits)"};
  info.options = {
      average ? counts : tie_option_info("a tied vote"),
      {.name = "route",
       .default_value = "auto",
       .help = "'sharded' (two rounds: signs to the server of a shard, its result to all), "
               "'one-shot' (one round: all signs to all ranks), or 'auto' (the faster one for the "
               "bucket's size, the number of ranks and round_bytes); the results are the same",
       .wire_only = true},
      {.name = "round_bytes",
       .default_value = kRoundBytes,
       .help = "with route = auto: bytes that a rank could send while it waits for a round of "
               "messages (latency times rate); pride train measures them",
       .wire_only = true},
      momentum_option_info()};
  return info;
}

MethodInfo dlion_info(int world, bool average) {
  MethodInfo info = sign_info(
      world, average,
      average ? "Distributed Lion, average of signs" : "Distributed Lion, majority vote",
      concat("Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (", average ? "Avg" : "MaVo", ")"));
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  return info;
}

MethodInfo signum_info(int world, bool average) {
  MethodInfo info = sign_info(
      world, average,
      average ? "Distributed Signum, average of signs" : "Distributed Signum, majority vote",
      "Bernstein et al. 2018, arXiv:1802.04434, Algorithm 2; as D-SIGNUM in Liu et al. 2024, "
      "arXiv:2404.00438, Section 5");
  info.default_beta1 = 0.99;
  return info;
}

}  // namespace

std::unique_ptr<SignMethod> make_signs(const std::string& name, const MethodContext& ctx,
                                       BlendOf blend, bool average, bool muon) {
  return std::make_unique<DistributedLion>(name, ctx, blend, average, muon);
}

MethodInfo muon_info(int world, bool average) {
  MethodInfo info = dlion_info(world, average);
  info.title = average ? "Distributed Lion with Muon's direction, average of signs"
                       : "Distributed Lion with Muon's direction, majority vote";
  info.source = concat(info.source, "; Newton-Schulz: Jordan et al. 2024, Muon");
  info.default_lr = 1e-3;
  info.default_beta2 = 0.95;  // with beta1 0.9 nearly Muon's Nesterov momentum of 0.95
  std::ranges::move(OrthogonalBlend::options("none"), std::back_inserter(info.options));
  return info;
}

Tie tie_option(const std::string& method, const MethodContext& ctx) {
  return static_cast<Tie>(word_option(method, ctx, "tie", {"hash", "zero"}));
}

MethodOption tie_option_info(std::string tied) {
  return {"tie", "hash",
          std::move(tied) +
              ": 'hash' uses a bit that all ranks share, 'zero' does not change the coordinate "
              "(2 bits down)"};
}

namespace {

template <BlendOf kBlend, bool kAverage, bool kMuon = false>
std::unique_ptr<Method> make_method_of(const std::string& name, const MethodContext& ctx) {
  return make_signs(name, ctx, kBlend, kAverage, kMuon);
}
template <MethodInfo (*kInfo)(int, bool), bool kAverage>
MethodInfo info_of(int world) {
  return kInfo(world, kAverage);
}

}  // namespace

extern const MethodEntry kDistributedLionVote = {"dlion-vote", make_method_of<lion_blend, false>,
                                                 info_of<dlion_info, false>};
extern const MethodEntry kDistributedLionAverage = {"dlion-avg", make_method_of<lion_blend, true>,
                                                    info_of<dlion_info, true>};
extern const MethodEntry kDistributedMuonVote = {
    "dlion-muon", make_method_of<lion_blend, false, true>, info_of<muon_info, false>};
extern const MethodEntry kDistributedMuonAverage = {
    "dlion-muon-avg", make_method_of<lion_blend, true, true>, info_of<muon_info, true>};
extern const MethodEntry kSignumVote = {"signum-vote", make_method_of<signum_blend, false>,
                                        info_of<signum_info, false>};
extern const MethodEntry kSignumAverage = {"signum-avg", make_method_of<signum_blend, true>,
                                           info_of<signum_info, true>};

}  // namespace pride::methods
