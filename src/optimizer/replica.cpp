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
  for_local(workers.front(), x, [](LocalParameters& local, View own, std::span<const char> fixed) {
    local.to_local(own, fixed);
  });
}

// param_hash() of the parameters that must be equal on all ranks.
std::uint64_t Replica::Impl::common_hash(View x) const {
  return RunValues(layout, sections, workers.front()).params_hash(x);
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
    impl_->for_local(impl_->workers.front(), placed.view(),
                     [](LocalParameters& local, View x, std::span<const char> fixed) {
                       local.to_common(x, fixed);
                     });
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
    return impl_->common_hash(placed.view());
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
  const MethodInfo& info = method(group);
  const ParamGroup before = settings_of(now, info);
  const ParamGroup& first = impl_->options.groups[static_cast<std::size_t>(group)];
  PRIDE_CHECK((values.method.empty() && values.options.empty()) ||
                  (values.method == first.method && values.options == first.options),
              "optimizer: group ", group, ": set_group() with another method or other options");
  const auto or_before = [](std::optional<double> a, std::optional<double> b) { return a ? a : b; };
  const bool for_betas = values.momentum && info.default_momentum == 0;
  now = complete_group({.lr = or_before(values.lr, before.lr),
                        .beta1 = for_betas ? values.beta1 : or_before(values.beta1, before.beta1),
                        .beta2 = for_betas ? values.beta2 : or_before(values.beta2, before.beta2),
                        .eps = or_before(values.eps, before.eps),
                        .weight_decay = or_before(values.weight_decay, before.weight_decay),
                        .momentum = or_before(values.momentum, before.momentum)},
                       info, group);
}

ParamGroup Replica::Impl::settings(int index) {
  const GroupValues& now = group(index);  // which checks the index
  ParamGroup values = settings_of(now, sections.of_group(index).info);
  const ParamGroup& first = options.groups[static_cast<std::size_t>(index)];
  values.method = first.method;
  values.options = first.options;
  return values;
}

ParamGroup Replica::group(int group) const { return impl_->settings(group); }

// --- Facts. --------------------------------------------------------------------------------------

const Layout& Replica::layout() const noexcept { return impl_->layout; }
const MethodInfo& Replica::method(int group) const {
  impl_->group(group);
  return impl_->sections.of_group(group).info;
}
std::int64_t Replica::steps_done() const noexcept { return impl_->steps_done; }

std::uint64_t Replica::Impl::state_floats(std::size_t section) const {
  std::uint64_t floats = 0;
  for (const Steps& steps : workers) {
    const StateTable& table = steps[section].method->state();
    floats += &steps == &workers.front() ? table.floats() : table.own_floats();
  }
  return floats;
}

MemoryUse Replica::memory() const {
  MemoryUse use;
  use.masters = impl_->parameters->bytes();
  use.frames = impl_->frame_bytes();
  std::uint64_t apart = 0;  // server state, which lies on the host
  for (std::size_t s = 0; s < impl_->sections.size(); ++s) {
    use.state += sizeof(float) * impl_->state_floats(s);
    use.frames += impl_->workers.front()[s].method->facts().frame_bytes;
    for (const Impl::Steps& steps : impl_->workers) {
      apart += sizeof(float) * steps[s].method->state().floats(StateKind::kServer);
    }
  }
  const Space& space = impl_->space;
  use.scratch = space.held() + apart - use.state - use.masters + space.scratch_bytes();
  return use;
}

SharedContext Replica::Impl::shared_context(std::int64_t step) const {
  SharedContext shared{.step = step, .voters = world, .seed = options.seed};
  shared.weights = weights;
  shared.central = by_ballots;
  return shared;
}

Cost Replica::Impl::cost_of(std::size_t section, std::int64_t step, bool mean) const {
  const SectionStep& of = workers.front()[section];
  const auto costs = mean ? mean_costs : step_costs;
  return costs(*of.method, of.section->buckets, shared_context(step),
               options.nodes)[static_cast<std::size_t>(rank())];
}

Cost Replica::Impl::cost_of(std::int64_t step, bool mean) const {
  Cost sum;
  for (std::size_t s = 0; s < sections.size(); ++s) sum += cost_of(s, step, mean);
  return sum;
}

Cost Replica::cost(std::int64_t step) const { return impl_->cost_of(step, false); }
Cost Replica::mean_cost(std::int64_t step) const { return impl_->cost_of(step, true); }

std::vector<SectionReport> Replica::sections(std::int64_t step) const {
  std::vector<SectionReport> reports;
  for (std::size_t s = 0; s < impl_->sections.size(); ++s) {
    const Section& section = impl_->sections[s];
    const Traffic traffic =
        s < impl_->section_traffic.size() ? impl_->section_traffic[s] : Traffic{};
    reports.push_back({.method = section.method,
                       .options = section.options,
                       .groups = section.groups,
                       .n_coords = section.layout.n_coords(),
                       .state = sizeof(float) * impl_->state_floats(s),
                       .cost = impl_->cost_of(s, step, false),
                       .mean_cost = impl_->cost_of(s, step, true),
                       .bytes_sent = traffic.bytes_sent,
                       .bytes_received = traffic.bytes_received,
                       .messages_sent = traffic.messages_sent});
  }
  return reports;
}

std::map<std::string, int> Replica::routes() const {
  std::map<std::string, int> routes;
  const SharedContext shared = impl_->shared_context(impl_->steps_done);
  for (const SectionStep& step : impl_->workers.front()) {
    for (const Bucket& bucket : step.section->buckets) {
      const auto parts = parts_in_period(*step.method, bucket, shared);
      if (shared.central) ++routes["coordinator"];
      if (shared.voters > 1) ++routes[std::string(route_name(main_route(parts)))];
    }
  }
  return routes;
}

}  // namespace pride
