// A step of virtual workers: the gradients of each, then one exchange for all.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <deque>

#include "base/parallel.h"
#include "optimizer/virtual_workers.h"

namespace pride {

// Between exchanges workers' parameters differ, and to_local() makes them. Local steps write here.
View VirtualWorkers::Impl::sink() {
  if (sink_places.empty()) {
    std::size_t most = 0;
    for (const TensorSlot& slot : layout.tensors()) most = std::max(most, slot.n);
    sink_values = FlatBuffer::room(most, space);
    for (const TensorSlot& slot : layout.tensors()) {
      sink_places.push_back({sink_values.span().first(slot.n), slot.offset});
    }
  }
  return {.places = sink_places.data(), .memory = &space};
}

// --- A worker's gradients. -----------------------------------------------------------------------

void VirtualWorkers::Impl::hand_over(Worker& w, GradientView grads) {
  if (std::ranges::none_of(workers, &Worker::handed_over)) timing = {};
  const Stopwatch watch(timing.encode_s);
  w.ctx = ctx;
  w.ctx.rank = static_cast<int>(&w - workers.data());
  w.ctx.lean = true;
  w.unused = unused;
  w.ctx.unused = w.unused;
  w.grads = grads;
  protocol = w.method->protocol(w.ctx);
  const bool shares = protocol.preliminary.has_value();  // then it encodes after an exchange of all
  if (protocol.keeps_gradient || (shares && w.method->local() == nullptr)) keep_gradient(w);
  for (std::size_t t = layout.tensors().size(); t-- > 0;) {
    if (!w.ctx.is_unused(t)) w.method->tensor_ready(t, w.ctx, w.grads);
  }
  w.handed_over = true;
  if (shares) return;
  if (protocol.whole_gradient) w.step->prepare(w.ctx, w.grads, std::nullopt);
  encode(w);
  for (std::size_t b = 0; b < buckets.size(); ++b) {  // local steps
    if (protocol.delay == 0 && !w.flights[b].parts.empty()) continue;
    w.step->apply(b, w.flights[b], w.ctx, sink());
  }
}

// Copies the gradient as the method would read it: as float32, multiplied by the factor.
void VirtualWorkers::Impl::keep_gradient(Worker& w) {
  if (w.kept.size() == 0) w.kept = FlatBuffer::room(layout.flat_size(), space);
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    if (w.ctx.is_unused(t)) continue;
    space.run(kernels::Widen{w.grads.of(t, slot.offset, slot.offset + slot.n),
                             w.kept.span().subspan(slot.offset, slot.n)});
  }
  w.grads = {.flat = w.kept.data()};
}

void VirtualWorkers::Impl::encode(Worker& w) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    w.step->encode(b, w.ctx, w.grads, w.flights[b]);
  }
}

// --- All workers. --------------------------------------------------------------------------------

std::optional<NonFinite> VirtualWorkers::Impl::exchange_and_apply(View x) {
  for (Worker& w : workers) {
    w.handed_over = false;
    w.traffic = {};
  }
  std::optional<NonFinite> bad;
  if (protocol.exchanges) {
    if (protocol.preliminary) share();
    const Stopwatch watch(timing.exchange_s);
    bad = exchange();
  }
  const Stopwatch watch(timing.apply_s);
  grad_norm = 0;
  if (options.clip_global_norm > 0 && !bad) clip_mean();
  for (std::size_t b = 0; b < buckets.size() && !bad; ++b) {
    if (!workers.front().flights[b].parts.empty()) take_result(b, x);
  }
  if (bad && protocol.delay > 0) {
    for (Worker& w : workers) w.method->local()->drop(w.ctx, *bad);
    bad.reset();
  }
  Worker& first = workers.front();
  if (first.method->local() != nullptr) first.method->local()->to_common(x, first.ctx.frozen);
  return bad;
}

// The exchange of Protocol::preliminary, after which all encode.
void VirtualWorkers::Impl::share() {
  const Stopwatch watch(timing.encode_s);
  for_workers([this](Worker& w) { w.step->prepare(w.ctx, w.grads, protocol.preliminary); });
  InProcess all(*protocol.preliminary,
                ranks([](Worker& w) -> Wire& { return w.step->preliminary(); }), {});
  all.begin();
  all.serve(0);
  all.end(true);
  for (Worker& w : workers) w.step->take_preliminary(w.ctx);
  for_workers([this](Worker& w) { encode(w); });
}

// Moves the frames of all buckets, part by part, as ranks do. Returns the first flag.
std::optional<NonFinite> VirtualWorkers::Impl::exchange() {
  for_workers([](Worker& w) {
    for (Flight& flight : w.flights) w.step->complete(w.ctx, flight);
  });
  std::size_t k = 0;
  while (exchange_parts(k)) ++k;
  for (const Flight& flight : workers.front().flights) {
    if (flight.non_finite) return flight.non_finite;
  }
  return std::nullopt;
}

// Part k of each bucket that has one and no flag. Returns whether a bucket has more parts.
bool VirtualWorkers::Impl::exchange_parts(std::size_t k) {
  struct Task {
    InProcess* part;
    std::size_t number;
  };
  std::deque<InProcess> parts;
  std::vector<Task> tasks;
  bool more = false;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Flight& flight = workers.front().flights[b];
    if (k >= flight.parts.size() || flight.non_finite) continue;
    more = more || k + 1 < flight.parts.size();
    InProcess& part = parts.emplace_back(
        flight.parts[k], ranks([&](Worker& w) -> Wire& { return w.flights[b].wires[k]; }),
        options.nodes);
    if (part.begin()) {  // nothing more of this bucket is exchanged
      parts.pop_back();
      continue;
    }
    for (std::size_t i = 0; i < part.tasks(); ++i) tasks.push_back({&part, i});
  }
  run_parallel(tasks.size(), [&](std::size_t i) { tasks[i].part->serve(tasks[i].number); });
  for (InProcess& part : parts) part.end(!protocol.same_apply);
  for (Worker& w : workers) {
    for (Flight& flight : w.flights) {
      if (k < flight.parts.size() && !flight.non_finite) {
        flight.non_finite = flight.wires[k].non_finite;
      }
    }
  }
  return more;
}

template <typename WireOf>
std::vector<InProcess::Rank> VirtualWorkers::Impl::ranks(const WireOf& wire_of) {
  std::vector<InProcess::Rank> ranks;
  for (Worker& w : workers) ranks.push_back({*w.method, w.ctx, wire_of(w), w.traffic});
  return ranks;
}

// A device has one queue, and the workers' work on it one order.
template <typename Body>
void VirtualWorkers::Impl::for_workers(const Body& body) {
  if (space.is_host()) {
    run_parallel(workers.size(), [&](std::size_t i) { body(workers[i]); });
  } else {
    std::ranges::for_each(workers, body);
  }
}

void VirtualWorkers::Impl::clip_mean() {
  const Worker& first = workers.front();
  grad_norm = std::sqrt(first.step->mean_squares(first.flights));
  const double limit = options.clip_global_norm;
  if (grad_norm <= limit) return;
  for (Worker& w : workers) w.ctx.grad_scale = static_cast<float>(limit / grad_norm);
}

// Visits the values of a bucket that workers share.
template <typename Body>
void VirtualWorkers::Impl::for_shared(std::size_t bucket, View x, const Body& body) {
  const Bucket& b = buckets[bucket];
  for (const auto buffer : (*method).state().buffers(StateKind::kShared)) {
    body(buffer.subspan(b.begin, b.size()));
  }
  if (method->local() != nullptr) return;
  for (const Shard& shard : b.shards) {
    for (const Piece& piece : shard.pieces) body(x.of(piece));
  }
}

// Each worker commits its own state and makes the same step in the shared values, which are reset
// before it. With a delay the method keeps the result until it adopts it.
void VirtualWorkers::Impl::take_result(std::size_t bucket, View x) {
  std::size_t at = 0;
  if (!protocol.same_apply && world > 1) {
    for_shared(bucket, x, [&](Floats values) { at += values.size(); });
    if (shared.size() < at) shared = FlatBuffer::room(at, space);
    at = 0;
    for_shared(bucket, x, [&](Floats values) {
      space.run(kernels::Copy{values, shared.span().subspan(at, values.size())});
      at += values.size();
    });
  }
  for (Worker& w : workers) {
    at = 0;
    if (w.ctx.rank > 0 && !protocol.same_apply) {
      for_shared(bucket, x, [&](Floats values) {
        space.run(kernels::Copy{shared.span().subspan(at, values.size()), values});
        at += values.size();
      });
    }
    if (protocol.same_apply && w.ctx.rank > 0) break;
    if (protocol.delay > 0) {
      w.step->keep_result(bucket, w.flights[bucket], w.ctx);
    } else {
      w.step->apply(bucket, w.flights[bucket], w.ctx, x);
    }
  }
}

}  // namespace pride
