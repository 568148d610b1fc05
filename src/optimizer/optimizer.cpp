// Optimizer's public functions, except those of steps, state files and virtual workers.
// SPDX-License-Identifier: Apache-2.0
#include "pride/optimizer.h"

#include <algorithm>

#include "optimizer/optimizer_impl.h"
#include "optimizer/replica.h"
#include "pride/error.h"

namespace pride {
Optimizer::Optimizer(Communicator& comm, Layout layout, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(comm, std::move(layout), std::move(options))) {}
Optimizer::~Optimizer() = default;

StepReport Optimizer::step(const Parameters& params, const Gradients& grads,
                           std::span<const bool> unused) {
  return impl_->whole_step(params, grads, unused);
}

void Optimizer::begin_step(const Parameters& params, const Gradients& grads) {
  impl_->begin(params, &grads);
}
void Optimizer::begin_step(const Parameters& params) { impl_->begin(params, nullptr); }
void Optimizer::gradient_ready(std::size_t tensor, bool unused) {
  impl_->tensor_ready(tensor, unused);
}
void Optimizer::gradient_ready(std::size_t tensor, const ConstTensor& grad) {
  impl_->tensor_ready(tensor, grad);
}
StepReport Optimizer::finish_step() { return impl_->finish(); }
std::vector<std::size_t> Optimizer::take_released() { return impl_->take_released(); }

GroupValues& Optimizer::Impl::group(int index) {
  PRIDE_CHECK(index >= 0 && static_cast<std::size_t>(index) < groups.size(), "optimizer: group ",
              index, ", must be from 0 to ", groups.size() - 1);
  return groups[static_cast<std::size_t>(index)];
}

void Optimizer::set_group(const ParamGroup& values, int group) {
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

ParamGroup Optimizer::group(int group) const {
  return settings_of(impl_->group(group), impl_->info);
}

void Optimizer::add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: add() in the middle of a step");
  PRIDE_CHECK(impl_->refusal.empty(),
              "optimizer: add() after a step that failed: ", impl_->refusal);
  PRIDE_CHECK(impl_->followers.empty(), "optimizer: add() after follow(): create a new optimizer");
  impl_->complete();
  impl_ = impl_->with(std::move(tensors), std::move(groups));
}

void Optimizer::place(const Parameters& params) { impl_->place(params, "place"); }

void Optimizer::broadcast(const Parameters& params) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: broadcast() in the middle of a step");
  impl_->complete();  // until then the communicator is that of an exchange in flight
  if (impl_->central) {
    impl_->place(params, "broadcast");
    return impl_->join();
  }
  Communicator& comm = *impl_->comms.front();
  std::exception_ptr unusable;
  try {
    impl_->place(params, "broadcast");
  } catch (const InvalidArgument&) {
    unusable = std::current_exception();
  }
  check_accepted(comm, Call::kBroadcast, unusable != nullptr);
  if (unusable) std::rethrow_exception(unusable);
  if (comm.size() == 1) return;
  const Communicator::Scope scope(comm, "broadcast of the parameters");
  const View view = impl_->parameters->view();
  Space& space = impl_->space;
  std::vector<float> room;
  const auto& tensors = impl_->layout.tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto values = view.f32(t, tensors[t].offset, tensors[t].offset + tensors[t].n);
    const bool here = space.is_host() && !values.halved();
    if (!here) on_host(space, values, room);
    const std::span<float> sent = here ? values.span() : std::span(room);
    comm.broadcast(std::as_writable_bytes(sent), 0);
    if (!here) space.write(sent, values);
  }
  impl_->publish();
}

void Optimizer::set_frozen(std::span<const bool> frozen) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: set_frozen() in the middle of a step");
  const std::size_t n = impl_->layout.tensors().size();
  PRIDE_CHECK(frozen.empty() || frozen.size() == n, "optimizer: set_frozen(): ", frozen.size(),
              " flags for ", n, " tensors");
  const bool any = std::ranges::find(frozen, true) != frozen.end();
  impl_->frozen.assign(frozen.begin(), any ? frozen.end() : frozen.begin());
}

void Optimizer::set_gradient_factor(float factor) {
  PRIDE_CHECK(!impl_->in_step || impl_->workers,
              "optimizer: set_gradient_factor() in the middle of a step");
  impl_->gradient_factor = factor;
}

void Optimizer::scale_next_step(const float* factor) {
  PRIDE_CHECK(!impl_->in_step, "optimizer: scale_next_step() in the middle of a step");
  PRIDE_CHECK(
      !impl_->workers && !impl_->central,
      "optimizer: scale_next_step() is not supported with virtual workers or a coordinator");
  const Protocol protocol = impl_->method->protocol({.voters = impl_->world()});
  PRIDE_CHECK(impl_->method->local() == nullptr,
              "optimizer: scale_next_step() is not supported with ", method(),
              ": a step without exchange cannot report a non-finite gradient to all ranks");
  impl_->next_scale = {true, factor};
}

void Optimizer::set_stream(void* stream) {
  if (stream != impl_->options.stream) impl_->space.after(stream);  // the last look at the other
  impl_->options.stream = stream;
}

int Optimizer::worker_number() const {
  return impl_->central ? impl_->central->number() : impl_->comms.front()->rank();
}

void Optimizer::replay(const Parameters& params, std::span<const std::byte> record) {
  impl_->place(params, "replay");
  impl_->replay(record);
  impl_->publish();
}

// A worker in the middle of a period drops its local steps if it has missed a round.
void Optimizer::Impl::join() {
  PRIDE_CHECK(refusal.empty(), "optimizer: broadcast() after a step that failed: ", refusal);
  try {
    by_rounds(steps_done / central->period(),
              [&](std::int64_t& round) { central->join(parameters->view(), round); });
  } catch (const CommError& e) {
    refusal = e.what();
    throw;
  }
  publish();
  params_checked = true;
}

void Optimizer::Impl::replay(std::span<const std::byte> record) {
  PRIDE_CHECK(world() == 1, "optimizer: replay() on a communicator of size ", world(),
              ", must be 1");
  if (!central && !shadow)
    shadow = std::make_unique<Central>(layout, *method, buckets, space, options);
  Central& rounds = central ? *central : *shadow;
  const std::int64_t round = steps_done / rounds.period();
  rounds.replay(parameters->view(), round, record, concat("replay of round ", round));
  steps_done = (round + 1) * rounds.period();
}

const Layout& Optimizer::layout() const noexcept { return impl_->layout; }
std::int64_t Optimizer::steps_done() const noexcept { return impl_->steps_done; }
std::string_view Optimizer::method() const noexcept { return impl_->options.method; }
MemoryUse Optimizer::memory() const {
  MemoryUse use;
  use.state = sizeof(float) * impl_->method_floats();
  use.masters = impl_->parameters->bytes();
  use.frames = impl_->pipeline->wire_bytes() + impl_->method->facts().frame_bytes;
  if (impl_->workers) use.frames += impl_->workers->frame_bytes();
  use.frames += impl_->results.capacity();
  for (const auto& follower : impl_->followers) use.frames += follower->frame_bytes();
  std::uint64_t apart = 0;  // server state, which lies on the host
  for (int i = 0; i < impl_->n_workers(); ++i) {
    apart += sizeof(float) * impl_->table(i).floats(StateKind::kServer);
  }
  const Space& space = impl_->space;
  use.scratch = space.held() + apart - use.state - use.masters + space.scratch_bytes();
  return use;
}

std::uint64_t Optimizer::state_floats() const noexcept {
  return impl_->method_floats() + impl_->parameters->bytes() / sizeof(float);
}

std::vector<StateBuffer> Optimizer::state_buffers() {
  if (!impl_->in_step) {
    impl_->complete();
    impl_->space.before(impl_->options.stream);
  }
  return impl_->method->state().buffers();
}

Round Optimizer::Impl::round_of(std::int64_t step) const {
  Round round{.step = step, .voters = world(), .seed = options.seed};
  round.weights = weights;
  round.central = central != nullptr;
  return round;
}

// With a coordinator: the bytes of the ballot, without the client's messages around it.
Cost Optimizer::Impl::cost_of(std::int64_t step) const {
  if (!central) {
    return step_costs(*method, buckets, round_of(step),
                      options.nodes)[static_cast<std::size_t>(comms.front()->rank())];
  }
  Cost cost{.exact = false, .bound = false};
  if (ends_round(step)) cost.bytes_up = central->ballot_bytes(step / central->period());
  return cost;
}

Cost Optimizer::cost(std::int64_t step) const { return impl_->cost_of(step); }

Cost Optimizer::mean_cost(std::int64_t step) const {
  if (impl_->central) {
    const std::int64_t period = impl_->central->period();
    Cost cost = impl_->cost_of(step - step % period + period - 1);
    cost.bytes_up = (cost.bytes_up + static_cast<std::uint64_t>(period) - 1) /
                    static_cast<std::uint64_t>(period);
    return cost;
  }
  return mean_costs(*impl_->method, impl_->buckets, impl_->round_of(step),
                    impl_->options.nodes)[static_cast<std::size_t>(impl_->comms.front()->rank())];
}

std::int64_t Optimizer::period() const noexcept { return impl_->info.period; }

std::int64_t Optimizer::lost_of(std::int64_t steps) const {
  std::int64_t lost = 0;
  for (const std::int64_t s : impl_->method->facts().exchanging_steps) {
    lost = std::max(lost, (steps - 1 - s + period()) % period());
  }
  return std::min(lost, steps);
}

// Waits for the exchanges in flight, because their results are state.
void Optimizer::Impl::complete() {
  if (refusal.empty()) guarded([&] { pipeline->complete(); });
}

Traffic Optimizer::finish_exchanges() {
  PRIDE_CHECK(!impl_->in_step, "optimizer: finish_exchanges() in the middle of a step");
  impl_->complete();
  return impl_->pipeline->has_delay() ? impl_->uncounted() : Traffic{};
}

void Optimizer::to_common(const Parameters& params) const {
  impl_->place(params, "to_common");
  impl_->complete();
  if (LocalParameters* local = impl_->method->local()) {
    local->to_common(impl_->parameters->view(), impl_->frozen);
  }
  impl_->publish();
}

void Optimizer::to_local(const Parameters& params) const {
  impl_->place(params, "to_local");
  // for virtual workers to_worker() does it, worker by worker
  if (LocalParameters* local = impl_->method->local(); local && !impl_->workers) {
    local->to_local(impl_->parameters->view(), impl_->frozen);
  }
  impl_->publish();
}

std::uint64_t Optimizer::hash(const Parameters& params) const {
  impl_->place(params, "hash");
  impl_->complete();
  std::vector<ParameterPlace> room;
  return hash_of(impl_->layout, common_of(*impl_->method, impl_->parameters->view(), room));
}

void Optimizer::read(const Parameters& params, std::span<float> flat) const {
  impl_->place(params, "read");
  PRIDE_CHECK(flat.size() == impl_->layout.flat_size(), "optimizer: read() into ", flat.size(),
              " floats, the layout has ", impl_->layout.flat_size(), " with padding");
  gather(impl_->layout, impl_->parameters->view(), flat);
}

void Optimizer::read(std::size_t tensor, std::size_t begin, std::span<float> values) const {
  const auto& tensors = impl_->layout.tensors();
  PRIDE_CHECK(!impl_->in_step, "optimizer: read() in the middle of a step");
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

void Optimizer::write(const Parameters& params, std::span<const float> flat) {
  impl_->place(params, "write");
  PRIDE_CHECK(flat.size() == impl_->layout.flat_size(), "optimizer: write() of ", flat.size(),
              " floats, the layout has ", impl_->layout.flat_size(), " with padding");
  scatter(impl_->layout, flat, impl_->parameters->view());
  impl_->publish();
}

std::map<std::string, int> Optimizer::routes() const {
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
