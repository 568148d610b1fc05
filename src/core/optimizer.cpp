// The optimizer as its users see it, and its state.
// SPDX-License-Identifier: Apache-2.0
#include "pride/optimizer.h"

#include <algorithm>
#include <sstream>

#include "core/optimizer_impl.h"
#include "core/state_io.h"
#include "pride/error.h"

namespace pride {
namespace {

std::string hex(std::uint64_t v) {
  std::ostringstream text;
  text << std::hex << v;
  return text.str();
}

// "tie=hash": a method's options in the order of their names, those left out that no result depends
// on.
std::string text_of(const std::map<std::string, std::string>& options, const MethodInfo& info) {
  std::string text;
  for (const auto& [name, value] : options) {
    const auto known = std::ranges::find(info.options, name, &MethodOption::name);
    if (known != info.options.end() && known->wire_only) continue;
    text += concat(text.empty() ? "" : " ", name, "=", value);
  }
  return text;
}

}  // namespace

Optimizer::Optimizer(Communicator& comm, Layout layout, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(comm, std::move(layout), std::move(options))) {}
Optimizer::~Optimizer() = default;

StepReport Optimizer::step(std::span<float> params, std::span<const float> grads,
                           std::span<const bool> absent) {
  return impl_->whole_step(params, grads, absent);
}
StepReport Optimizer::step(std::span<float> params, std::span<const BFloat16> grads,
                           std::span<const bool> absent) {
  return impl_->whole_step(params, grads, absent);
}

void Optimizer::begin_step(std::span<float> params, std::span<const float> grads) {
  impl_->begin(params, grads);
}
void Optimizer::begin_step(std::span<float> params, std::span<const BFloat16> grads) {
  impl_->begin(params, grads);
}
void Optimizer::gradient_ready(std::size_t tensor, bool absent) {
  impl_->tensor_ready(tensor, absent);
}
StepReport Optimizer::finish_step() { return impl_->finish(); }

void Optimizer::set_lr(double lr, int group) {
  PRIDE_CHECK(group >= 0 && static_cast<std::size_t>(group) < impl_->groups.size(),
              "set_lr: group ", group, " of ", impl_->groups.size());
  GroupValues& values = impl_->groups[static_cast<std::size_t>(group)];
  check_lr(lr, values.weight_decay, group);
  values.lr = lr;
}

double Optimizer::lr(int group) const {
  PRIDE_CHECK(group >= 0 && static_cast<std::size_t>(group) < impl_->groups.size(), "lr: group ",
              group, " of ", impl_->groups.size());
  return impl_->groups[static_cast<std::size_t>(group)].lr;
}

const Layout& Optimizer::layout() const noexcept { return impl_->layout; }
std::int64_t Optimizer::steps_done() const noexcept { return impl_->steps_done; }
std::string_view Optimizer::method() const noexcept { return impl_->options.method; }
std::uint64_t Optimizer::state_floats() const noexcept { return impl_->method->state_floats(); }

Cost Optimizer::cost(std::int64_t step) const {
  return impl_->method->cost(impl_->buckets, impl_->comms.front()->rank(), step);
}

std::map<std::string, int> Optimizer::exchange_forms() const {
  std::map<std::string, int> forms;
  for (const Bucket& bucket : impl_->buckets) {
    const std::string_view name = impl_->method->exchange_form(bucket).name;
    if (!name.empty()) ++forms[std::string(name)];
  }
  return forms;
}

StateDict Optimizer::save() const {
  PRIDE_CHECK(!impl_->in_step, "optimizer: save() in the middle of a step");
  PRIDE_CHECK(impl_->refusal.empty(),
              "optimizer: save() after a step that failed: ", impl_->refusal);
  StateDict state;
  state.scalars = {{"method", impl_->options.method},
                   {"layout", hex(impl_->layout.digest())},
                   {"rank", std::to_string(impl_->comms.front()->rank())},
                   {"world", std::to_string(impl_->comms.front()->size())},
                   {"seed", std::to_string(impl_->options.seed)},
                   {"options", text_of(impl_->options.options, impl_->info)},
                   {"step", std::to_string(impl_->steps_done)}};
  DictWriter writer(impl_->layout, state);
  impl_->method->save(writer);
  if (impl_->method->has_owner_state()) {
    state.scalars["bucket size"] = std::to_string(impl_->options.bucket_coords);
  }
  return state;
}

void Optimizer::load(const StateDict& state) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: load() in the middle of a step");
  const auto must_be = [&](const std::string& key, const std::string& want) {
    const auto found = state.scalars.find(key);
    PRIDE_CHECK(found != state.scalars.end(), "load: the state does not say its ", key);
    PRIDE_CHECK(found->second == want, "load: the state is for ", key, " ", found->second,
                ", this optimizer has ", want);
  };
  must_be("method", impl_->options.method);
  must_be("layout", hex(impl_->layout.digest()));
  must_be("rank", std::to_string(impl_->comms.front()->rank()));
  must_be("world", std::to_string(impl_->comms.front()->size()));
  must_be("seed", std::to_string(impl_->options.seed));
  must_be("options", text_of(impl_->options.options, impl_->info));
  if (impl_->method->has_owner_state()) {
    must_be("bucket size", std::to_string(impl_->options.bucket_coords));
  }
  const auto step = state.scalars.find("step");
  PRIDE_CHECK(step != state.scalars.end() && !step->second.empty() && step->second.size() < 19 &&
                  step->second.find_first_not_of("0123456789") == std::string::npos,
              "load: the state's step counter is missing or not a number");

  // check everything first: a refused state changes nothing
  DictReader check(impl_->layout, state, false);
  impl_->method->load(check);
  check.expect_all_used();
  DictReader commit(impl_->layout, state, true);
  impl_->method->load(commit);
  impl_->steps_done = std::stoll(step->second);
  impl_->refusal.clear();
}

}  // namespace pride
