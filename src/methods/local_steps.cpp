// Local steps on each worker, then a step of another method for the drifts; local_forms.cpp has the
// methods.
// SPDX-License-Identifier: Apache-2.0
// Source    Local steps, drifts and an outer optimizer: McMahan et al. 2017, arXiv:1602.05629,
//           Algorithm 1; Reddi et al. 2021, arXiv:2003.00295, Algorithm 1. Outer sign momentum: Yu
//           et al. 2024, arXiv:2411.17866, Algorithm 1.
// Cost      that of the outer method, every h steps; nothing in between.
// State     that of the outer method; common (n): the parameters of the last exchange, equal on all
//           ranks; drift (n) and local_m, with AdamW and Muon local_v (n each): local, never sent;
//           with drift_feedback rest (n), local; with a delay before (n), shared, and sent (n),
//           local.
// Deviates  the drift has a buffer of its own: (x - lr g) - x is not -lr g in floats. A tensor with
//           neither gradient nor drift on a rank is unused there. Parameters decay at the exchange:
//           local steps do not.
#include "methods/local_steps.h"

#include <algorithm>

#include "base/power.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr std::int64_t kLongestPeriod = 100'000;
constexpr double kMostRate = 1e6;

StepScalars betas_of(const OptionValues& options) {
  const auto beta = [&](const char* option) {
    if (!options.has(option)) return 0.0;
    const double value = options.number(option, 0, 1);
    PRIDE_CHECK(value < 1, options.method(), ": option ", option, " = '", options.text(option),
                "': must be below 1, or no drift enters the momentum");
    return value;
  };
  const double beta1 = beta("outer_beta1"), beta2 = beta("outer_beta2");
  return {.beta1 = static_cast<float>(beta1),
          .one_minus_beta1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .one_minus_beta2 = static_cast<float>(1 - beta2)};
}

// All buffers are in the outer method's table. The local rule's names get a prefix there.
FlatBuffer& add_common(StateTable& state) {
  return state.add("common", StateKind::kShared, StateTable::Values::kParameters);
}
FlatBuffer& add_drift(StateTable& state) { return state.add("drift", StateKind::kLocal); }
StateTable& named_local(StateTable& state) {
  state.begin_names_with("local_");
  return state;
}

std::span<float> of(FlatBuffer& buffer, const Piece& p) {
  return buffer.span().subspan(p.begin, p.n());
}

template <typename Body>
void for_pieces(const Bucket& b, const Body& body) {
  for (const Shard& shard : b.shards) {
    for (const Piece& p : shard.pieces) body(p);
  }
}

}  // namespace

std::int64_t period_option(const OptionValues& options) {
  return options.whole("h", 1, kLongestPeriod);
}

LocalSteps::LocalSteps(const MethodContext& ctx, std::unique_ptr<Method> outer, OuterStep kind)
    : Method(*outer),
      layout_(ctx.layout),
      space_(ctx.space),
      period_(period_option(ctx.options)),
      kind_(kind),
      outer_lr_(ctx.options.number("outer_lr", 0, kMostRate)),
      outer_betas_(betas_of(ctx.options)),
      outer_(std::move(outer)),
      feedback_(static_cast<float>(ctx.options.number("drift_feedback", 0, 1))),
      common_(add_common(state_)),
      drift_(add_drift(state_)),
      rest_(feedback_ > 0 ? &state_.add("rest", StateKind::kLocal) : nullptr),
      fragments_(ctx, period_, state_),
      rule_(make_local_rule(local_rule(ctx.options), ctx, named_local(state_))),
      faults_(space_.fault_words(layout_.tensors().size() + 1)),
      handed_over_(layout_.tensors().size(), -1),
      idle_(layout_.tensors().size(), 1) {
  local_ = this;
  mean_gradient_ = nullptr;  // it would be the mean of drifts
  facts_.period = period_;
  facts_.exchanging_steps = fragments_.steps();
  facts_.matrix_operations /= static_cast<double>(period_);
  facts_.matrix_operations += rule_->operations();
  // equal to the outer method's if both have some: same options
  if (facts_.matrices.empty()) facts_.matrices = rule_->matrices();
  if (fragments_.stream()) {  // more tensors would change the fragments
    facts_.cannot_grow =
        ctx.options.method() +
        ": tensors cannot be added after the first step with the options fragments and delay";
  }
  state_.add_text(
      "held", [this] { return std::to_string(held_); },
      [this](const std::string& text, std::size_t n_tensors, bool commit) {
        read_held(text, n_tensors, commit);
      });
}

void LocalSteps::read_held(const std::string& text, std::size_t n_tensors, bool commit) {
  std::size_t held = 0;
  while (held <= n_tensors && std::to_string(held) != text) ++held;
  PRIDE_CHECK(held <= n_tensors, "load: the state's method.held is '", text, "', not a number from",
              " 0 to ", n_tensors);
  if (commit) held_ = held;
}

// --- What the outer method sees: every h-th step, and drifts as gradients. ----------------------

SharedContext LocalSteps::outer_context(const SharedContext& shared) const {
  SharedContext outer = shared;
  outer.step = shared.step / period_;
  return outer;
}

std::vector<StepScalars> LocalSteps::outer_scalars(std::span<const StepScalars> groups) const {
  std::vector<StepScalars> scalars;
  for (const StepScalars& s : groups) {
    const bool signs = kind_ == OuterStep::kSigns;
    const double rate = signs ? outer_lr_ * s.lr : outer_lr_;
    StepScalars& outer = scalars.emplace_back(outer_betas_);
    outer.lr = static_cast<float>(rate);
    outer.decay =
        static_cast<float>(signs ? 1 - rate * s.weight_decay : power(s.decay.same, period_));
  }
  return scalars;
}

const StepContext& LocalSteps::outer_context(const StepContext& ctx) {
  outer_scalars_ = outer_scalars(ctx.groups);
  outer_ctx_ = ctx;
  outer_ctx_.step = ctx.step / period_;
  outer_ctx_.x = {.flat = std::as_const(common_).span()};
  outer_ctx_.groups = outer_scalars_;
  outer_ctx_.unused = idle_;
  return outer_ctx_;
}

GradientView LocalSteps::direction() {
  if (direction_.size() == 0) direction_ = FlatBuffer::room(layout_.flat_size(), space_);
  return {.flat = direction_.data()};
}

Protocol LocalSteps::protocol(const SharedContext& shared) const {
  Protocol protocol = outer_->protocol(outer_context(shared));
  protocol.same_apply = protocol.keeps_gradient = false;
  protocol.cuts.assign(fragments_.cuts().begin(), fragments_.cuts().end());
  protocol.delay = fragments_.delay();
  protocol.replays = protocol.replays && !fragments_.stream();  // a round exchanges all fragments
  if (fragments_.sends(shared.step)) {
    const auto [begin, end] = fragments_.sent_range(shared.step);
    protocol.sent_begin = begin;
    protocol.sent_end = end;
    return protocol;
  }
  protocol.exchanges = false;
  protocol.slack = {};
  return protocol;
}

std::vector<Part> LocalSteps::parts(const Bucket& b, const SharedContext& shared) const {
  return sends(b, shared) ? outer_->parts(b, outer_context(shared)) : std::vector<Part>();
}

void LocalSteps::serve(const Part& part, const Shard& shard, const VoterFrames& voters,
                       const SharedContext& shared, Reply& reply) const {
  const auto scalars = outer_scalars(shared.groups);
  SharedContext outer = outer_context(shared);
  outer.groups = scalars;
  if (!shared.x.empty()) outer.x = {.flat = std::as_const(common_).span()};
  outer_->serve(part, shard, voters, outer, reply);
}

// --- Worker. -------------------------------------------------------------------------------------

// The words for faults of a tensor's gradient, and of a step that only this rank drops.
FaultSlot LocalSteps::fault_of(std::size_t tensor, const StepContext& ctx) {
  if (fault_step_ != ctx.step) space_.forget({faults_.get(), idle_.size() + 1});
  fault_step_ = ctx.step;
  return {faults_.get() + tensor, static_cast<std::uint32_t>(tensor)};
}

FaultSlot LocalSteps::fault_of_step(std::size_t tensor, const StepContext& ctx) {
  FaultSlot fault = fault_of(tensor, ctx);
  fault.word = faults_.get() + idle_.size();
  return fault;
}

// y = the local rule's step for the gradient of a part of the tensor. Returns true if the rule has
// waited for this last part and has changed y in all parts.
bool LocalSteps::take_step(std::size_t tensor, std::size_t begin, std::size_t end,
                           GradientView grad, const StepContext& ctx, Guard guard) {
  const int group = layout_.tensors()[tensor].spec.group;
  StepScalars local = ctx.groups[static_cast<std::size_t>(group)];
  local.decay = 1;
  rule_->step(begin, grad.of(tensor, begin, end), local, drift_.span().subspan(begin, end - begin),
              guard);
  return rule_->end_piece(tensor, ctx.step, local, {.flat = drift_.span()}, guard);
}

// D of a tensor whose drift is complete. If the guard has a fault, D is NaN, which the outer method
// reports.
void LocalSteps::hand_over(std::size_t tensor, const StepContext& ctx, Guard guard) {
  const TensorSlot& slot = layout_.tensors()[tensor];
  const float lr = ctx.groups[static_cast<std::size_t>(slot.spec.group)].lr;
  const GradientView all = direction();
  const auto d = direction_.span().subspan(slot.offset, slot.n);
  space_.run(kernels::Copy{drift_.span().subspan(slot.offset, slot.n), d});
  if (rest_ != nullptr) space_.run(kernels::Sum{d, rest_->span().subspan(slot.offset, slot.n), d});
  // with a rate of 0 the outer step is 0, too
  space_.run(kernels::Scale{kind_ == OuterStep::kSigns && lr != 0 ? -1 / lr : -1, d});
  if (guard != nullptr) space_.run(kernels::Poison{d, guard});
  idle_[tensor] = 0;
  handed_over_[tensor] = ctx.step;
  outer_->tensor_ready(tensor, outer_context(ctx), all);
}

// The last local step before an exchange runs by whole tensors, which outer methods may need. A
// gradient that is not finite changes no drift. With streaming fragments only this rank drops the
// step, and it keeps its drift.
void LocalSteps::tensor_ready(std::size_t tensor, const StepContext& ctx, GradientView grad) {
  const TensorSlot& slot = layout_.tensors()[tensor];
  if (!fragments_.sends(slot.offset, ctx.step)) return;
  const std::size_t begin = slot.offset, end = begin + slot.n;
  const FaultSlot fault = fault_of(tensor, ctx);
  space_.run(kernels::CheckFinite{grad.of(tensor, begin, end), fault});
  take_step(tensor, begin, end, grad, ctx, fault.word);
  if (!fragments_.stream()) return hand_over(tensor, ctx, fault.word);
  if (space_.fault_in(fault.word) != Wire::kNoTensor) fault_of_step(tensor, ctx).note();
  hand_over(tensor, ctx, nullptr);
}

// Looks at all tensors that may have no gradient in this step, as it waits for the device.
bool LocalSteps::has_drifted(std::size_t tensor, const StepContext& ctx) {
  const auto& tensors = layout_.tensors();
  if (drift_step_ != ctx.step) {
    if (!drift_words_) drift_words_ = space_.fault_words(tensors.size());
    space_.forget({drift_words_.get(), tensors.size()});
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (handed_over_[t] == ctx.step || ctx.is_frozen(t)) continue;
      for (const FlatBuffer* y : {&drift_, rest_}) {
        if (y == nullptr) continue;
        space_.run(kernels::FindNonzero{y->span().subspan(tensors[t].offset, tensors[t].n),
                                        {drift_words_.get() + t, static_cast<std::uint32_t>(t)}});
      }
    }
    drifted_.resize(tensors.size());
    space_.read(drift_words_.get(), std::span(drifted_));
    drift_step_ = ctx.step;
  }
  return drifted_[tensor] != Wire::kNoTensor;
}

// A tensor without a gradient in this step is exchanged if it has drifted and is not frozen.
void LocalSteps::settle_unused(std::size_t tensor, const StepContext& ctx) {
  if (handed_over_[tensor] == ctx.step) return;
  if (!ctx.is_frozen(tensor) && has_drifted(tensor, ctx)) return hand_over(tensor, ctx, nullptr);
  idle_[tensor] = 1;
  handed_over_[tensor] = ctx.step;
}

void LocalSteps::encode(const Bucket& b, const StepContext& ctx, Flight& flight) {
  held_ = layout_.tensors().size();
  const bool last = sends(b, ctx);
  for (const Shard& shard : b.shards) {
    for (const Piece& p : shard.pieces) {
      if (last) {
        settle_unused(p.tensor, ctx);
      } else if (!ctx.is_unused(p.tensor)) {
        space_.run(kernels::CheckFinite{flight.grad.of(p), fault_of_step(p.tensor, ctx)});
      }
    }
  }
  if (!last) return;
  flight.grad = direction();
  const StepContext& outer = outer_context(ctx);
  for (std::size_t k = 0; k < flight.parts.size(); ++k) {
    flight.wires[k].unused = outer.unused;
    if (space_.is_host()) mark_unused(flight.parts[k], flight.wires[k]);
  }
  outer_->encode(b, outer, flight);
  const bool all_encoded = b.begin == fragments_.sent_range(ctx.step).begin;
  if (ctx.lean && all_encoded && !outer_->protocol(outer).keeps_gradient) direction_ = {};
  if (fragments_.delay() == 0) return;
  for_pieces(b, [&](const Piece& p) { fragments_.send(p.begin, of(common_, p), of(drift_, p)); });
}

// x' = the outer method's step;  rest = feedback (rest + y - (x' - decayed x))
void LocalSteps::take_outer_step(const Bucket& b, const Flight& flight, const StepContext& outer) {
  if (rest_ == nullptr) return outer_->apply(b, flight, outer, {.flat = common_.span()});
  if (moved_.size() < b.size()) moved_ = FlatBuffer::room(b.size(), space_);
  const auto moved = [&](const Piece& p) {
    return moved_.span().subspan(p.begin - b.begin, p.n());
  };
  for_pieces(b, [&](const Piece& p) {
    space_.run(kernels::Copy{of(common_, p), moved(p)});
    space_.run(kernels::ApplyDecay{outer.scalars_of(p).decay.same, moved(p)});
  });
  outer_->apply(b, flight, outer, {.flat = common_.span()});
  for_pieces(b, [&](const Piece& p) {
    const auto part = moved(p), rest = of(*rest_, p);
    if (outer.is_frozen(p.tensor)) return;
    space_.run(kernels::Scale{-1, part});
    space_.run(kernels::Sum{part, of(common_, p), part});
    space_.run(kernels::Scale{-1, part});
    space_.run(kernels::Sum{
        rest, fragments_.delay() > 0 ? fragments_.sent(p.begin, p.n()) : of(drift_, p), rest});
    space_.run(kernels::Sum{rest, part, rest});
    space_.run(kernels::Scale{feedback_, rest});
  });
}

// Without a delay the exchange sets the drift to 0.
void LocalSteps::apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) {
  const bool last = sends(b, ctx), at_once = last && fragments_.delay() == 0;
  if (at_once) take_outer_step(b, flight, outer_context(ctx));
  std::vector<std::size_t> moved;  // tensors with parts that were placed before their step
  for_pieces(b, [&](const Piece& p) {
    const auto y = of(drift_, p);
    if (ctx.is_frozen(p.tensor)) return fragments_.take_back(p.begin, y, ctx.step);
    if (at_once) space_.run(kernels::Fill{y, 0});
    if (!last && !ctx.is_unused(p.tensor) &&
        take_step(p.tensor, p.begin, p.end, flight.grad, ctx, fault_of_step(p.tensor, ctx).word)) {
      moved.push_back(p.tensor);
    }
    fragments_.place(p.begin, of(common_, p), y, x.of(p), ctx.step);
  });
  for (const std::size_t tensor : moved) {
    const TensorSlot& slot = layout_.tensors()[tensor];
    fragments_.write(slot.offset, common_.span().subspan(slot.offset, slot.n),
                     drift_.span().subspan(slot.offset, slot.n),
                     x.f32(tensor, slot.offset, slot.offset + slot.n), ctx.step);
  }
}

// An exchange without this worker's drift. `rest` of earlier exchanges stays.
void LocalSteps::replay(const Bucket& b, const Flight& flight, const StepContext& ctx, View x) {
  held_ = layout_.tensors().size();
  outer_->apply(b, flight, outer_context(ctx), {.flat = common_.span()});
  for (const Shard& shard : b.shards) {
    for (const Piece& p : shard.pieces) {
      space_.run(kernels::Fill{of(drift_, p), 0});
      space_.run(kernels::Copy{of(common_, p), x.of(p)});
    }
  }
}

void LocalSteps::arrive(const Bucket& b, const Flight& flight, const StepContext& begun) {
  take_outer_step(b, flight, outer_context(begun));
}

void LocalSteps::drop(const StepContext& begun, const NonFinite& why) {
  fragments_.drop(begun.step, why);
}

StepNotes LocalSteps::end_step(const StepContext& ctx) {
  StepNotes notes;
  drift_step_ = -1;  // a loaded state may be at this step again
  const auto adopted = fragments_.end_step(ctx.step);
  if (adopted && adopted->dropped) {
    notes.dropped = adopted->dropped;
    notes.dropped_step = adopted->step;
  }
  const bool others_know = fragments_.sends(ctx.step) && !fragments_.stream();
  if (fault_step_ != ctx.step || others_know) return notes;
  const std::uint32_t tensor = space_.fault_in(faults_.get() + idle_.size());
  if (tensor != Wire::kNoTensor) notes.alone = NonFinite{ctx.rank, tensor};
  return notes;
}

}  // namespace pride::methods
