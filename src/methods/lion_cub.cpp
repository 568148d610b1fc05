// Lion Cub.
// SPDX-License-Identifier: Apache-2.0
// Source    Ishikawa et al. 2024, arXiv:2411.16462: p-bit exchange, quantiser, momentum sync.
// Cost      `bits` up and 1 bit down per coordinate (2 with tie = zero), plus frames;
//           2 (N-1)/N of a synchronised momentum in `sync_every` steps; samples for diagnostics.
// State     m: momentum (n) float32, local to each rank but where it is synchronised;
//           with feedback = yes e: what the levels left out (n) float32.
// Deviates  scales shared by all ranks (the public code's are each rank's own);
//           the largest level is 2^(p-1) - 1 at any N (there divided by N);
//           which momenta are synchronised, how often and in what format is not published: options.
#include "methods/lion_cub.h"

#include <algorithm>
#include <utility>

#include "codecs/payload.h"
#include "codecs/scaled_signs.h"
#include "core/floats_of.h"
#include "exchange/mean_values.h"
#include "exchange/samples.h"
#include "methods/options.h"
#include "pride/error.h"
#include "pride/methods/lion_cub.h"

namespace pride::methods {
namespace {

// Extra wires of a bucket; 0 is the exchange's own.
constexpr std::size_t kSyncWire = 1, kSampleWire = 2, kErrorWire = 3;

QuantiserOptions read_quantiser(const std::string& method, const MethodContext& ctx) {
  QuantiserOptions o;
  o.scale = static_cast<Scale>(word_option(method, ctx, "scale", {"l1", "l2", "max", "quantile"}));
  o.granularity =
      static_cast<Granularity>(word_option(method, ctx, "granularity", {"block", "tensor", "row"}));
  o.quantile = number_option(method, ctx, "quantile", 0.5, 1);
  o.stochastic = word_option(method, ctx, "rounding", {"nearest", "stochastic"}) == 1;
  o.shared = yes_no_option(method, ctx, "shared");
  return o;
}

}  // namespace

LionCub::LionCub(const std::string& name, const MethodContext& ctx)
    : VoteMethod(name, ctx, FormRule{FormRule::Choice::kSharded}),
      layout_(ctx.layout),
      world_(ctx.world),
      form_(ctx.options.at("form")),
      quantiser_(name, ctx, read_quantiser(name, ctx)),
      granularity_(quantiser_.options().granularity),
      sync_every_(whole_option(name, ctx, "sync_every", 1, 1'000'000)),
      probe_every_(whole_option(name, ctx, "probe_every", 0, 1'000'000'000)),
      sync_format_(value_format(name, ctx.options.at("sync_format"))),
      plan_{static_cast<int>(whole_option(name, ctx, "bits", 1, kernels::kMaxLevelBits)),
            choose_tensors(name, ctx.layout, ctx.options.at("sync"))},
      sync_(ctx.layout, plan_.synced, sync_every_, sync_format_),
      probe_(ctx.layout, ctx.world) {
  word_option(name, ctx, "form", {"auto", "sharded", "direct"});
  if (!yes_no_option(name, ctx, "feedback")) return;
  PRIDE_CHECK(plan_.bits > 1, name,
              ": option feedback = yes with bits = 1: a sign has no scale "
              "that the error could be measured in; choose bits = 2 or more, or signsgd-ef");
  e_ = std::make_unique<FlatBuffer>(ctx.layout.flat_size());
}

void LionCub::set_plan(Plan plan) {
  plan_ = std::move(plan);
  sync_ = MomentumSync(layout_, plan_.synced, sync_every_, sync_format_);
}

kernels::Blend LionCub::blend(const StepScalars& s) const {
  return {s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2};
}

bool LionCub::needs_whole_gradient() const noexcept {
  return plan_.bits > 1 && quantiser_.needs_whole_gradient();
}

std::size_t LionCub::alignment() const noexcept {
  return granularity_ == Granularity::kBlock ? kScaleBlock : kAlignment;
}

bool LionCub::probes(std::int64_t step) const {
  return probe_every_ > 0 && world_ > 1 && (step + 1) % probe_every_ == 0;
}

exchange::QuantisedVote LionCub::how(const Bucket& b, int bits) const {
  exchange::QuantisedVote vote{.bits = bits, .tie = tie()};
  vote.form = form_ == "direct"    ? exchange::QuantisedForm::kDirect
              : form_ == "sharded" ? exchange::QuantisedForm::kSharded
                                   : exchange::cheaper_form(b, vote);
  return vote;
}

ExchangeForm LionCub::exchange_form(const Bucket& b) const {
  if (world_ == 1) return {};
  const bool direct = plan_.bits > 1 && how(b, plan_.bits).form == exchange::QuantisedForm::kDirect;
  return {direct ? "direct" : "sharded"};
}

void LionCub::agree(Communicator& c, const StepContext& ctx, ConstView g) {
  quantiser_.agree(c, ctx, g, momentum(), e_ ? e_->span() : std::span<float>{});
}

// --- Encode: levels of the blend, momenta that are due, samples. ---------------------------------

void LionCub::encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  if (probes(ctx.step)) sample_blends(b, g, ctx, w);
  if (plan_.bits == 1) {
    VoteMethod::encode(b, g, ctx, w);
  } else {
    encode_levels(b, g, ctx, w);
  }
  gather_momentum(b, ctx, w);
  if (probes(ctx.step)) sample_results(b, ctx, w);
}

void LionCub::encode_levels(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  w.poison.reset();
  exchange::prepare_levels(b, ctx, how(b, plan_.bits), w);
  std::span<float> e_next;
  if (e_) {
    w.extra(kErrorWire).dense_in.resize(4 * b.size());
    e_next = floats_of(w.extra(kErrorWire).dense_in);
  }
  for (std::size_t j = 0; j < b.shards.size(); ++j) {
    const Shard& shard = b.shards[j];
    encode_shard(shard, g, ctx, w.up[j].span(),
                 e_ ? e_next.subspan(shard.begin - b.begin, shard.size()) : e_next, w.poison);
  }
}

void LionCub::encode_shard(const Shard& shard, ConstView g, const StepContext& ctx,
                           std::span<std::byte> frame, std::span<float> e_next,
                           std::optional<Poison>& poison) {
  const LevelFrame at(shard, plan_.bits);
  Quantiser::Target target{at.shape, 0, words_at(frame, at.lines_at, at.shape.size())};
  for (const Piece& p : shard.pieces) {
    if (!ctx.is_absent(p.tensor)) {
      const Quantiser::Buffers buffers{
          .g = g.f32(p.begin, p.end),
          .m = momentum().subspan(p.begin, p.n()),
          .e = e_ ? std::as_const(*e_).span().subspan(p.begin, p.n()) : std::span<const float>{},
          .e_next = e_ ? e_next.subspan(p.begin - shard.begin, p.n()) : e_next};
      const std::size_t bad = quantiser_.encode(p, ctx, buffers, target);
      if (bad != kernels::kAllFinite && !poison) {
        poison = Poison{ctx.rank, static_cast<std::uint32_t>(p.tensor)};
      }
    }
    target.first_word += p.n_words();
  }
}

void LionCub::gather_momentum(const Bucket& b, const StepContext& ctx, Wire& w) {
  const auto ranges = sync_.due(b, ctx.step);
  if (ranges.empty()) return;
  ByteBuffer& values = w.extra(kSyncWire).dense_in;
  values.resize(4 * size_of(ranges));
  auto out = floats_of(values).begin();
  for (const auto& r : ranges) {
    out = std::ranges::copy(momentum().subspan(r.begin, r.end - r.begin), out).out;
  }
}

// What this rank would vote for, before the step changes its momentum.
void LionCub::sample_blends(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) {
  const auto coords = probe_.samples_in(b);
  const auto u = exchange::prepare_samples(coords.size(), ctx, w.extra(kSampleWire)).u;
  for (std::size_t i = 0; i < coords.size(); ++i) {
    const std::size_t c = coords[i];
    const TensorSlot& slot = layout_.tensors()[probe_.tensor_at(c)];
    const kernels::Blend rule = blend(ctx.groups[static_cast<std::size_t>(slot.spec.group)]);
    kernels::blend_only(g.f32(c, c + 1), rule, momentum().subspan(c, 1), u.subspan(i, 1));
    if (e_) u[i] += std::as_const(*e_).span()[c];
  }
}

void LionCub::sample_results(const Bucket& b, const StepContext& ctx, Wire& w) {
  const auto coords = probe_.samples_in(b);
  const auto mine = exchange::own_samples(coords.size(), ctx, w.extra(kSampleWire));
  std::size_t j = 0;
  for (std::size_t i = 0; i < coords.size(); ++i) {
    while (coords[i] >= b.shards[j].end) ++j;
    const bool absent = ctx.is_absent(probe_.tensor_at(coords[i]));
    mine.m[i] = momentum()[coords[i]];
    if (absent) mine.u[i] = 0;
    mine.q[i] = absent
                    ? exchange::kNoLevel
                    : static_cast<std::int8_t>(sent_level(b.shards[j], w.up[j].span(), coords[i]));
  }
}

int LionCub::sent_level(const Shard& shard, std::span<const std::byte> frame,
                        std::size_t coord) const {
  const std::size_t i = coord - shard.begin;
  if (plan_.bits == 1) {
    const SignFrame at(shard);
    return bit_at(words_at(frame, at.signs_at, at.sign_words), i) ? 1 : -1;
  }
  const LevelFrame at(shard, plan_.bits);
  return kernels::level_at(words_at(frame, at.lines_at, at.shape.size()), at.shape, i);
}

// --- Exchange and apply. ------------------------------------------------------------------------

void LionCub::exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) {
  if (plan_.bits == 1) {
    VoteMethod::exchange(c, b, ctx, w);
  } else {
    exchange::quantised_vote(c, b, ctx, how(b, plan_.bits), w);
  }
  if (!w.poison) share(c, b, ctx, w);
}

// What goes beside the vote: momenta that are due, and samples.
void LionCub::share(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) {
  const auto ranges = sync_.due(b, ctx.step);
  if (!ranges.empty()) {
    Wire& values = w.extra(kSyncWire);
    const auto tensor_of = [&](std::size_t value) {
      for (const auto& r : ranges) {
        if (value < r.end - r.begin) return static_cast<std::uint32_t>(r.tensor);
        value -= r.end - r.begin;
      }
      return std::uint32_t{0};
    };
    exchange::mean_values(c, {b.index, tensor_of}, ctx, sync_format_, floats_of(values.dense_in),
                          values);
    w.poison = values.poison;
  }
  if (w.poison || !probes(ctx.step)) return;
  exchange::share_samples(c, b.index, ctx, probe_.samples_in(b).size(), w.extra(kSampleWire));
}

void LionCub::apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) {
  VoteMethod::apply(b, w, ctx, x);
  const auto ranges = sync_.due(b, ctx.step);
  const float* mean = ranges.empty() ? nullptr : floats_of(w.extra(kSyncWire).dense_in).data();
  for (const auto& r : ranges) {
    std::copy_n(mean, r.end - r.begin, momentum().subspan(r.begin).begin());
    mean += r.end - r.begin;
  }
  if (probes(ctx.step)) probe_.keep(b, ctx, w.extra(kSampleWire));
  if (!e_) return;
  const auto e_next = floats_of(w.extra(kErrorWire).dense_in);
  for (const Shard& shard : b.shards) {
    for (const Piece& p : shard.pieces) {
      if (ctx.is_absent(p.tensor)) continue;
      std::ranges::copy(e_next.subspan(p.begin - b.begin, p.n()),
                        e_->span().subspan(p.begin).begin());
    }
  }
}

double LionCub::probe_rate() const {
  return probe_every_ > 0 ? 1.0 / static_cast<double>(probe_every_) : 0;
}

void LionCub::end_step(const StepContext& ctx) {
  diagnostics_.clear();
  if (probes(ctx.step)) diagnostics_ = probe_.evaluate();
}

// --- Cost and state. ----------------------------------------------------------------------------

Cost LionCub::cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const {
  Cost total;
  const auto add = [&](const Cost& more) {
    total.bytes_up += more.bytes_up;
    total.bytes_down += more.bytes_down;
    total.exact &= more.exact;
    total.bound &= more.bound;
  };
  for (const Bucket& b : buckets) {
    add(plan_.bits == 1 ? VoteMethod::cost(std::span(&b, 1), rank, step)
                        : exchange::quantised_cost(b, rank, how(b, plan_.bits)));
    add(sync_.cost(b, rank, step));
    if (probes(step)) add(probe_.cost(b));
  }
  if (plan_.bits > 1) total.bytes_up += quantiser_.cost(world_);
  return total;
}

// Steps differ by what is synchronised, and by the samples: the average of both is told.
double LionCub::bytes_of(const Plan& plan, std::span<const Bucket> buckets, double sampled) const {
  const auto peers = static_cast<std::uint64_t>(world_ - 1);
  const auto ranks = static_cast<std::uint64_t>(world_);
  std::uint64_t votes = plan.bits > 1 ? ranks * quantiser_.cost(world_) : 0, samples = 0;
  for (const Bucket& b : buckets) {
    votes += plan.bits == 1 ? peers * exchange::vote_frames(b, tie())
                            : exchange::quantised_total(b, how(b, plan.bits));
    samples += ranks * probe_.cost(b).bytes();
  }
  const MomentumSync sync(layout_, plan.synced, sync_every_, sync_format_);
  return static_cast<double>(votes) + sampled * static_cast<double>(samples) +
         sync.mean_bytes(buckets, world_);
}

void LionCub::save(StateWriter& out) const {
  VoteMethod::save(out);
  if (e_) out.buffer("e", *e_);
}

void LionCub::load(StateReader& in) {
  VoteMethod::load(in);
  if (e_) in.buffer("e", *e_);
}

std::uint64_t LionCub::state_floats() const {
  return VoteMethod::state_floats() + (e_ ? e_->size() : 0);
}

// --- Registry. ----------------------------------------------------------------------------------

std::unique_ptr<Method> make_lion_cub(const MethodContext& ctx) {
  return std::make_unique<LionCub>("lion-cub", ctx);
}

MethodInfo lion_cub_base_info(int) {
  MethodInfo info;
  info.bits_up = 4;
  info.bits_down = 1;
  info.growth = "none";
  info.rounds = 5;  // scales; levels and votes; momenta and their means
  info.state_floats = 1;
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  info.options = {
      {"tie", "hash",
       "a vote of 0: 'hash' takes a random bit that all ranks share, 'zero' leaves the coordinate "
       "(2 bits down)"},
      {"scale", "l1",
       "magnitude that sets the levels: l1 (mean), l2 (root mean square), max or quantile"},
      {"quantile", "0.99", "with scale = quantile: the share of magnitudes within the levels"},
      {"granularity", "tensor",
       "what shares a scale: block (of 4096 coordinates), tensor or row; tensor and row need whole "
       "gradients, so exchange does not overlap with backward"},
      {"rounding", "nearest", "to a level: nearest or stochastic"},
      {"shared", "yes",
       "'yes': the ranks agree on the scales of tensors or rows; 'no': each has its own"},
      {"feedback", "no", "'yes' adds what the levels left out to the next step (1 float of state)"},
      {"form", "auto",
       "of the exchange: sharded, direct (the transport's integer all-reduce), or auto (fewer "
       "bytes)"},
      {"sync_every", "8", "steps in which every synchronised momentum is averaged once"},
      {"sync_format", "8", "of averaged momenta: fp32, bf16, or bits from 2 to 8"},
      {"probe_every", "100", "steps between measurements on samples; 0: none"}};
  return info;
}

MethodInfo lion_cub_info(int world) {
  MethodInfo info = lion_cub_base_info(world);
  info.title = "Lion Cub";
  info.source = "Ishikawa et al. 2024, arXiv:2411.16462";
  // a momentum of 8 bits and its part of a scale, once in 8 steps
  info.bits_up += 8.5 / 8;
  info.bits_down += 8.5 / 8;
  info.options.insert(info.options.begin(),
                      {{"bits", "4", "of a level, 2 to 8; 1: signs, as dlion-vote"},
                       {"sync", "all",
                        "momenta that are averaged over the ranks: none, all, vectors (norms and "
                        "biases), embeddings, first, last, or patterns of tensor names with *, "
                        "separated by commas"}});
  return info;
}

}  // namespace pride::methods
