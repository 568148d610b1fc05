// What front doors share: parameters, groups, costs.
// SPDX-License-Identifier: Apache-2.0
#include "pride/replica.h"

#include <algorithm>
#include <utility>

#include "optimizer/replica_impl.h"
#include "optimizer/run_values.h"
#include "pride/error.h"

namespace pride {

Replica::Replica(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Replica::~Replica() = default;

// --- Parameters. ---------------------------------------------------------------------------------

void Replica::Impl::check_idle(const char* call) const {
  PRIDE_CHECK(!in_step, "optimizer: ", call, "() in the middle of a step");
}

void Replica::Impl::place(const Parameters& params, const char* call) {
  space.after(options.stream);
  parameters->place(params, call);
}

// Makes written parameters available to the caller's stream.
void Replica::Impl::publish(const PlacedParameters& written) {
  written.publish();
  space.before(options.stream);
}

void Replica::Impl::to_local(View x) const {
  if (method->local() != nullptr) method->local()->to_local(x, frozen);
}

// After an error: what was begun runs now, and the caller's stream waits for it. Otherwise it would
// change parameters that the caller has restored, or read gradients that are freed.
void Replica::Impl::leave() noexcept try {
  space.before(options.stream);
} catch (const std::exception&) {
  return;  // the first error is reported
}

void Replica::place(const Parameters& params) {
  impl_->check_idle("place");
  impl_->place(params, "place");
}

void Replica::to_common(const Parameters& params) const {
  impl_->with(params, "to_common", [&](const PlacedParameters& placed) {
    impl_->complete();
    if (LocalParameters* local = impl_->method->local()) {
      local->to_common(placed.view(), impl_->frozen);
    }
    impl_->publish(placed);
  });
}

void Replica::to_local(const Parameters& params) const {
  impl_->with(params, "to_local", [&](const PlacedParameters& placed) {
    impl_->to_local(placed.view());
    impl_->publish(placed);
  });
}

std::uint64_t Replica::hash(const Parameters& params) const {
  return impl_->with(params, "hash", [&](const PlacedParameters& placed) {
    impl_->complete();
    std::vector<ParameterPlace> room;
    return hash_of(impl_->layout, common_of(*impl_->method, placed.view(), room));
  });
}

void Replica::read(const Parameters& params, std::span<float> flat) const {
  PRIDE_CHECK(flat.size() == impl_->layout.flat_size(), "optimizer: read() into ", flat.size(),
              " floats, the layout has ", impl_->layout.flat_size(), " with padding");
  impl_->with(params, "read",
              [&](const PlacedParameters& placed) { gather(impl_->layout, placed.view(), flat); });
}

void Replica::read(std::size_t tensor, std::size_t begin, std::span<float> values) const {
  const auto& tensors = impl_->layout.tensors();
  impl_->check_idle("read");
  PRIDE_CHECK(tensor < tensors.size(), "optimizer: read(): tensor ", tensor, ", the layout has ",
              tensors.size());
  const TensorSlot& slot = tensors[tensor];
  PRIDE_CHECK(begin <= slot.n && values.size() <= slot.n - begin,
              "optimizer: read(): ", values.size(), " values of '", slot.spec.name, "' from value ",
              begin, "; it has ", slot.n);
  const View view = impl_->parameters->view();
  PRIDE_CHECK(view.flat.size() > 0 || view.places != nullptr || slot.n == 0,
              "optimizer: read(): no earlier call was given the parameters");
  const std::size_t first = slot.offset + begin;
  view.memory->read(view.f32(tensor, first, first + values.size()), values);
}

void Replica::write(const Parameters& params, std::span<const float> flat) {
  impl_->check_idle("write");
  impl_->place(params, "write");
  PRIDE_CHECK(flat.size() == impl_->layout.flat_size(), "optimizer: write() of ", flat.size(),
              " floats, the layout has ", impl_->layout.flat_size(), " with padding");
  scatter(impl_->layout, flat, impl_->parameters->view());
  impl_->publish();
}

// --- Settings of the next steps. -----------------------------------------------------------------

void Replica::set_stream(void* stream) {
  if (stream != impl_->options.stream) impl_->space.after(stream);  // the last look at the other
  impl_->options.stream = stream;
}

void Replica::set_frozen(std::span<const bool> frozen) {
  impl_->check_idle("set_frozen");
  const std::size_t n = impl_->layout.tensors().size();
  PRIDE_CHECK(frozen.empty() || frozen.size() == n, "optimizer: set_frozen(): ", frozen.size(),
              " flags for ", n, " tensors");
  const bool any = std::ranges::find(frozen, true) != frozen.end();
  impl_->frozen.assign(frozen.begin(), any ? frozen.end() : frozen.begin());
}

void Replica::set_gradient_factor(float factor) {
  impl_->check_between_gradients("set_gradient_factor");
  impl_->gradient_factor = factor;
}

GroupValues& Replica::Impl::group(int index) {
  PRIDE_CHECK(index >= 0 && static_cast<std::size_t>(index) < groups.size(), "optimizer: group ",
              index, ", must be from 0 to ", groups.size() - 1);
  return groups[static_cast<std::size_t>(index)];
}

void Replica::set_group(const ParamGroup& values, int group) {
  GroupValues& now = impl_->group(group);
  const ParamGroup before = settings_of(now, impl_->info);
  const auto or_before = [](std::optional<double> a, std::optional<double> b) { return a ? a : b; };
  now = complete_group({.lr = or_before(values.lr, before.lr),
                        .beta1 = or_before(values.beta1, before.beta1),
                        .beta2 = or_before(values.beta2, before.beta2),
                        .eps = or_before(values.eps, before.eps),
                        .weight_decay = or_before(values.weight_decay, before.weight_decay)},
                       impl_->info, group);
}

ParamGroup Replica::group(int group) const { return settings_of(impl_->group(group), impl_->info); }

// --- Facts. --------------------------------------------------------------------------------------

const Layout& Replica::layout() const noexcept { return impl_->layout; }
const MethodInfo& Replica::method() const noexcept { return impl_->info; }
std::int64_t Replica::steps_done() const noexcept { return impl_->steps_done; }

MemoryUse Replica::memory() const {
  MemoryUse use;
  use.state = sizeof(float) * impl_->method_floats();
  use.masters = impl_->parameters->bytes();
  use.frames = impl_->frame_bytes() + impl_->method->facts().frame_bytes;
  std::uint64_t apart = 0;  // server state, which lies on the host
  for (const StateTable* table : impl_->tables) {
    apart += sizeof(float) * table->floats(StateKind::kServer);
  }
  const Space& space = impl_->space;
  use.scratch = space.held() + apart - use.state - use.masters + space.scratch_bytes();
  return use;
}

Round Replica::Impl::round_of(std::int64_t step) const {
  Round round{.step = step, .voters = world, .seed = options.seed};
  round.weights = weights;
  round.central = by_ballots;
  return round;
}

Cost Replica::Impl::cost_of(std::int64_t step) const {
  return step_costs(*method, buckets, round_of(step),
                    options.nodes)[static_cast<std::size_t>(rank())];
}

Cost Replica::Impl::mean_cost_of(std::int64_t step) const {
  return mean_costs(*method, buckets, round_of(step),
                    options.nodes)[static_cast<std::size_t>(rank())];
}

Cost Replica::cost(std::int64_t step) const { return impl_->cost_of(step); }
Cost Replica::mean_cost(std::int64_t step) const { return impl_->mean_cost_of(step); }

std::map<std::string, int> Replica::routes() const {
  std::map<std::string, int> routes;
  const Round round = impl_->round_of(impl_->steps_done);
  for (const Bucket& bucket : impl_->buckets) {
    const auto parts = parts_in_period(*impl_->method, bucket, round);
    if (round.central) ++routes["coordinator"];
    if (round.voters > 1) ++routes[std::string(route_name(main_route(parts)))];
  }
  return routes;
}

}  // namespace pride
