// SPDX-License-Identifier: Apache-2.0
#include "optimizer/virtual_workers.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/parallel.h"
#include "methods/registry.h"
#include "optimizer/reporting.h"

namespace pride {

VirtualWorkers::VirtualWorkers(const Layout& layout, const OptimizerOptions& options, Method& first,
                               std::span<const Bucket> buckets, Space& space)
    : layout_(layout), nodes_(options.nodes), buckets_(buckets), space_(space) {
  workers_.resize(static_cast<std::size_t>(options.virtual_workers));
  for (Worker& w : workers_) {
    w.method = &first;
    if (&w != &workers_.front()) {
      w.own = make_method(options.method, {layout, options.virtual_workers, options.options,
                                           options.nodes, space, options.orthogonalise});
      w.method = w.own.get();
      w.method->state().allocate_beside(first.state());
    }
    w.step.emplace(*w.method, buckets, space);
    w.flights.resize(buckets.size());
  }
}

std::size_t VirtualWorkers::frame_bytes() const {
  std::size_t bytes = 0;
  for (const Worker& w : workers_) {
    for (const Flight& flight : w.flights) bytes += flight.capacity_bytes();
  }
  return bytes;
}

std::uint64_t VirtualWorkers::state_floats() const {
  std::uint64_t floats = workers_.front().method->state().floats();
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    floats += workers_[i].method->state().own_floats();
  }
  return floats;
}

// Between exchanges workers' parameters differ, and to_local() makes them. Local steps write here.
View VirtualWorkers::sink() {
  if (sink_places_.empty()) {
    std::size_t most = 0;
    for (const TensorSlot& slot : layout_.tensors()) most = std::max(most, slot.n);
    sink_values_ = FlatBuffer::room(most, space_);
    for (const TensorSlot& slot : layout_.tensors()) {
      sink_places_.push_back({sink_values_.span().first(slot.n), slot.offset});
    }
  }
  return {.places = sink_places_.data(), .memory = &space_};
}

// --- A worker's gradients. -----------------------------------------------------------------------

void VirtualWorkers::hand_over(int worker, const StepContext& ctx, std::span<const char> unused,
                               GradientView grads) {
  if (std::ranges::none_of(workers_, &Worker::handed_over)) timing_ = {};
  const Stopwatch watch(timing_.encode_s);
  Worker& w = workers_[static_cast<std::size_t>(worker)];
  w.ctx = ctx;
  w.ctx.rank = worker;
  w.ctx.grad_scale = 1;
  w.unused.assign(unused.begin(), unused.end());
  w.ctx.unused = w.unused;
  w.grads = grads;
  protocol_ = w.method->protocol(w.ctx);
  const bool shares = protocol_.before.has_value();  // then it encodes after an exchange of all
  if (protocol_.keeps_gradient || (shares && !protocol_.own_parameters)) keep_gradient(w);
  for (std::size_t t = layout_.tensors().size(); protocol_.by_tensor && t-- > 0;) {
    if (!w.ctx.is_unused(t)) w.method->tensor_ready(t, w.ctx, w.grads);
  }
  w.handed_over = true;
  if (shares) return;
  if (protocol_.whole_gradient) w.step->prepare(w.ctx, w.grads, std::nullopt);
  encode(w);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {  // local steps
    if (protocol_.delay == 0 && !w.flights[b].parts.empty()) continue;
    w.step->apply(b, w.flights[b], w.ctx, sink());
  }
}

// Copies the gradient as the method would read it: as float32, multiplied by the factor.
void VirtualWorkers::keep_gradient(Worker& w) {
  if (w.kept.size() == 0) w.kept = FlatBuffer::room(layout_.flat_size(), space_);
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    if (w.ctx.is_unused(t)) continue;
    space_.run(kernels::Widen{w.grads.of(t, slot.offset, slot.offset + slot.n),
                              w.kept.span().subspan(slot.offset, slot.n)});
  }
  w.grads = {.flat = w.kept.data()};
}

void VirtualWorkers::encode(Worker& w) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    w.step->encode(b, w.ctx, w.grads, w.flights[b]);
  }
  w.method->end_encode(w.ctx);
}

// --- All workers. --------------------------------------------------------------------------------

std::optional<NonFinite> VirtualWorkers::finish(View x, double clip) {
  for (Worker& w : workers_) {
    w.handed_over = false;
    w.traffic = {};
  }
  std::optional<NonFinite> bad;
  if (protocol_.exchanges) {
    if (protocol_.before) share();
    const Stopwatch watch(timing_.exchange_s);
    bad = exchange();
  }
  const Stopwatch watch(timing_.apply_s);
  grad_norm_ = 0;
  if (clip > 0 && !bad) clip_mean(clip);
  for (std::size_t b = 0; b < buckets_.size() && !bad; ++b) {
    if (!workers_.front().flights[b].parts.empty()) take_result(b, x);
  }
  if (bad && protocol_.delay > 0) {
    for (Worker& w : workers_) w.method->drop(w.ctx, *bad);
    bad.reset();
  }
  if (protocol_.own_parameters) workers_.front().method->to_common(x, workers_.front().ctx.frozen);
  return bad;
}

// The exchange of Protocol::before, after which all encode.
void VirtualWorkers::share() {
  const Stopwatch watch(timing_.encode_s);
  for_workers([this](Worker& w) { w.step->prepare(w.ctx, w.grads, protocol_.before); });
  InProcess all(*protocol_.before, ranks([](Worker& w) -> Wire& { return w.step->before(); }), {});
  all.begin();
  all.serve(0);
  all.end(true);
  for (Worker& w : workers_) w.step->take_before(w.ctx);
  for_workers([this](Worker& w) { encode(w); });
}

// Moves the frames of all buckets, part by part, as ranks do. Returns the first flag.
std::optional<NonFinite> VirtualWorkers::exchange() {
  for_workers([](Worker& w) {
    for (Flight& flight : w.flights) w.step->complete(w.ctx, flight);
  });
  std::size_t k = 0;
  while (exchange_parts(k)) ++k;
  for (const Flight& flight : workers_.front().flights) {
    if (flight.non_finite) return flight.non_finite;
  }
  return std::nullopt;
}

// Part k of each bucket that has one and no flag. Returns whether a bucket has more parts.
bool VirtualWorkers::exchange_parts(std::size_t k) {
  struct Task {
    InProcess* part;
    std::size_t number;
  };
  std::deque<InProcess> parts;
  std::vector<Task> tasks;
  bool more = false;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Flight& flight = workers_.front().flights[b];
    if (k >= flight.parts.size() || flight.non_finite) continue;
    more = more || k + 1 < flight.parts.size();
    InProcess& part = parts.emplace_back(
        flight.parts[k], ranks([&](Worker& w) -> Wire& { return w.flights[b].wires[k]; }), nodes_);
    if (part.begin()) {  // nothing more of this bucket is exchanged
      parts.pop_back();
      continue;
    }
    for (std::size_t i = 0; i < part.tasks(); ++i) tasks.push_back({&part, i});
  }
  run_parallel(tasks.size(), [&](std::size_t i) { tasks[i].part->serve(tasks[i].number); });
  for (InProcess& part : parts) part.end(!protocol_.same_apply);
  for (Worker& w : workers_) {
    for (Flight& flight : w.flights) {
      if (k < flight.parts.size() && !flight.non_finite) {
        flight.non_finite = flight.wires[k].non_finite;
      }
    }
  }
  return more;
}

template <typename WireOf>
std::vector<InProcess::Rank> VirtualWorkers::ranks(const WireOf& wire_of) {
  std::vector<InProcess::Rank> ranks;
  for (Worker& w : workers_) ranks.push_back({*w.method, w.ctx, wire_of(w), w.traffic});
  return ranks;
}

// A device has one queue, and the workers' work on it one order.
template <typename Body>
void VirtualWorkers::for_workers(const Body& body) {
  if (space_.is_host()) {
    run_parallel(workers_.size(), [&](std::size_t i) { body(workers_[i]); });
  } else {
    std::ranges::for_each(workers_, body);
  }
}

void VirtualWorkers::clip_mean(double limit) {
  Worker& first = workers_.front();
  grad_norm_ = std::sqrt(first.step->mean_squares(first.flights));
  if (grad_norm_ <= limit) return;
  for (Worker& w : workers_) w.ctx.grad_scale = static_cast<float>(limit / grad_norm_);
}

// Visits the values of a bucket that workers share.
template <typename Body>
void VirtualWorkers::for_shared(std::size_t bucket, View x, const Body& body) {
  const Bucket& b = buckets_[bucket];
  for (const auto buffer : method(0).state().buffers(StateKind::kShared)) {
    body(buffer.subspan(b.begin, b.size()));
  }
  if (protocol_.own_parameters) return;
  for (const Shard& shard : b.shards) {
    for (const Piece& piece : shard.pieces) body(x.of(piece));
  }
}

// Each worker commits its own state and makes the same step in the shared values, which are reset
// before it. With a delay the method keeps the result until it adopts it.
void VirtualWorkers::take_result(std::size_t bucket, View x) {
  std::size_t at = 0;
  if (!protocol_.same_apply && size() > 1) {
    for_shared(bucket, x, [&](Floats values) { at += values.size(); });
    if (shared_.size() < at) shared_ = FlatBuffer::room(at, space_);
    at = 0;
    for_shared(bucket, x, [&](Floats values) {
      space_.run(kernels::Copy{values, shared_.span().subspan(at, values.size())});
      at += values.size();
    });
  }
  for (Worker& w : workers_) {
    at = 0;
    if (w.ctx.rank > 0 && !protocol_.same_apply) {
      for_shared(bucket, x, [&](Floats values) {
        space_.run(kernels::Copy{shared_.span().subspan(at, values.size()), values});
        at += values.size();
      });
    }
    if (protocol_.same_apply && w.ctx.rank > 0) {
      w.step->settle(w.flights[bucket], w.ctx.rank);
    } else if (protocol_.delay > 0) {
      w.step->arrive(bucket, w.flights[bucket], w.ctx);
    } else {
      w.step->apply(bucket, w.flights[bucket], w.ctx, x);
    }
  }
}

std::vector<StepNotes> VirtualWorkers::end_step() {
  std::vector<StepNotes> notes;
  for (Worker& w : workers_) {
    notes.push_back(w.method->end_step(w.ctx));
    if (protocol_.same_apply) break;
  }
  return notes;
}

void VirtualWorkers::forget() {
  for (Worker& w : workers_) w.handed_over = false;
}

}  // namespace pride
