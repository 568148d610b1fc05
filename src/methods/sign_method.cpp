// SPDX-License-Identifier: Apache-2.0
#include "methods/sign_method.h"

#include <algorithm>
#include <iterator>

#include "methods/dlion.h"
#include "methods/sign_counts.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr const char* kBandwidthDelay = "12500";  // default: 100 us x 1 Gbit/s
constexpr std::int64_t kMostBandwidthDelay = std::int64_t{1} << 40;

}  // namespace

SignMethod::SignMethod(const MethodContext& ctx, BlendOf blend, bool muon)
    : space_(ctx.space),
      layout_(ctx.layout),
      blend_(blend),
      choice_(static_cast<RouteChoice>(ctx.options.word("route", {"auto", "sharded", "one-shot"}))),
      bandwidth_delay_bytes_(static_cast<std::uint64_t>(
          ctx.options.whole("bandwidth_delay_bytes", 0, kMostBandwidthDelay))),
      nodes_(ctx.nodes),
      m_(state_.add("m", StateKind::kLocal, momentum_option(ctx.options))) {
  if (muon) {
    muon_ = std::make_unique<OrthogonalBlend>(ctx, state_, StateKind::kLocal);
    facts_.matrix_operations = muon_->operations();
    facts_.matrices = muon_->forms();
  }
  PRIDE_CHECK(choice_ != RouteChoice::kOneShot || !nodes_.hierarchical(), ctx.options.method(),
              ": option route = one-shot is not supported with nodes: the hierarchical route is "
              "two-shot; choose auto or sharded");
}

Protocol SignMethod::signs_protocol(int most_votes) const {
  return {.hierarchical = true, .most_votes = most_votes, .replays = true, .same_apply = true};
}

// The route with the lower phases * latency + bytes / rate, averaged over the ranks, with latency *
// rate = bandwidth_delay_bytes; one-shot if they are equal. All ranks choose the same.
std::vector<Part> SignMethod::parts(const Bucket& b, const SharedContext& shared) const {
  std::vector<Part> two_shots, one_shot;
  if (nodes_.hierarchical()) {
    two_shots.push_back(hierarchical_part(b, sign_frames(),
                                          count_frames(node_votes(shared), CountForm::kPacked),
                                          result_frames(shared.votes(), Route::kHierarchical)));
    return two_shots;
  }
  two_shots.push_back(
      sharded_part(b, sign_frames(), result_frames(shared.votes(), Route::kSharded)));
  if (choice_ == RouteChoice::kSharded || shared.voters == 1 || shared.central) return two_shots;
  one_shot.push_back(one_shot_part(b, sign_frames(Codec::kAllSigns),
                                   result_frames(shared.votes(), Route::kOneShot)));
  const bool faster = total_bytes(one_shot, shared.voters) <=
                      total_bytes(two_shots, shared.voters) +
                          static_cast<std::uint64_t>(shared.voters) * bandwidth_delay_bytes_;
  return choice_ == RouteChoice::kOneShot || faster ? std::move(one_shot) : std::move(two_shots);
}

void SignMethod::tensor_ready(std::size_t tensor, const StepContext& ctx, GradientView grad) {
  if (ctx.is_unused(tensor) || !muon_ || !muon_->has(tensor)) return;
  const TensorSlot& slot = layout_.tensors()[tensor];
  muon_->blend(tensor, ctx.step, blend_(ctx.scalars_of_group(slot.spec.group)),
               grad.of(tensor, slot.offset, slot.offset + slot.n), m_.of(slot.offset, slot.n));
}

void SignMethod::count_node(const Shard& shard, const VoterFrames& voters,
                            const SharedContext& shared, Reply& reply) const {
  const int votes = node_votes(shared);
  SignCounts(shard, voters, votes, votes).write_counts(CountForm::kPacked, reply.head);
}

int SignMethod::node_votes(const SharedContext& shared) const {
  int most = 0;
  for (int h = 0; h < nodes_.count(); ++h) most = std::max(most, votes_of_node(shared, nodes_, h));
  return most;
}

void SignMethod::upload_results(const Flight& flight) const {
  space_.begin_frames();
  space_.upload_block(flight.wire(0).down_block.span());
}

kernels::Step step_of(const Piece& p, const StepContext& ctx, const OrthogonalBlend* muon) {
  const StepScalars s = ctx.scalars_of(p);
  return {s.decay, s.lr * step_scale(muon, p.tensor)};
}

kernels::Blend signum_blend(const StepScalars& s) {
  return {s.beta1, s.one_minus_beta1, s.beta1, s.one_minus_beta1};
}

// --- Options and descriptions. -------------------------------------------------------------------

Tie tie_option(const OptionValues& options) {
  return static_cast<Tie>(options.word("tie", {"hash", "zero"}));
}

MethodOption tie_option_info(std::string tied) {
  return {"tie", "hash",
          std::move(tied) +
              ": 'hash' uses a bit that all ranks share, 'zero' does not change the coordinate "
              "(2 bits down)"};
}

namespace {

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
       .help = "'sharded' (two phases: signs to the server of a shard, its result to all), "
               "'one-shot' (one phase: all signs to all ranks), or 'auto' (the faster one for the "
               "bucket's size, the number of ranks and bandwidth_delay_bytes); the results are the "
               "same",
       .wire_only = true},
      {.name = "bandwidth_delay_bytes",
       .default_value = kBandwidthDelay,
       .help =
           "with route = auto: latency times rate, the bytes that a rank could send while it waits "
           "for a phase; pride train measures them",
       .wire_only = true},
      momentum_option_info()};
  return info;
}

}  // namespace

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

MethodInfo muon_info(int world, bool average) {
  MethodInfo info = dlion_info(world, average);
  info.title = average ? "Distributed Lion with Muon's direction, average of signs"
                       : "Distributed Lion with Muon's direction, majority vote";
  info.source = concat(info.source, "; Newton-Schulz: Jordan et al. 2024, Muon");
  info.default_lr = 1e-3;
  info.nesterov_betas = true;
  info.default_beta2 = 0.95;  // with beta1 0.9 nearly Muon's Nesterov momentum of 0.95
  std::ranges::move(OrthogonalBlend::options("none"), std::back_inserter(info.options));
  return info;
}

}  // namespace pride::methods
