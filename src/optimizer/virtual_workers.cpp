// SPDX-License-Identifier: Apache-2.0
#include "optimizer/virtual_workers.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "methods/registry.h"
#include "optimizer/reporting.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"

namespace pride {
namespace {

// Workers prepare and encode between messages, so a long wait does not mean that one hangs.
constexpr std::chrono::hours kNoTimeout{24 * 365};

}  // namespace

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
    w.flights.resize(buckets.size());
  }
}

std::size_t VirtualWorkers::frame_bytes() const {
  std::size_t bytes = 0;
  for (const Worker& w : workers_) {
    bytes += w.scratch.capacity_bytes();
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
                               GradientView grads, Communicator& alone) {
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
  if (protocol_.whole_gradient) w.method->prepare(alone, w.ctx, w.grads);
  encode(w);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {  // local steps
    if (protocol_.delay == 0 && !w.flights[b].parts.empty()) continue;
    w.method->apply(buckets_[b], w.flights[b], w.ctx, sink());
  }
}

// Copies the gradient as the method would read it: as float32, multiplied by the factor.
void VirtualWorkers::keep_gradient(Worker& w) {
  if (w.kept.size() == 0) w.kept = FlatBuffer::room(layout_.flat_size(), space_);
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    if (w.ctx.is_unused(t)) continue;
    space_.widen(w.grads.of(t, slot.offset, slot.offset + slot.n),
                 w.kept.span().subspan(slot.offset, slot.n));
  }
  w.grads = {.flat = w.kept.data()};
}

void VirtualWorkers::encode(Worker& w) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Flight& flight = w.flights[b];
    flight.grad = w.grads;
    flight.non_finite.reset();
    flight.parts = w.method->parts(buckets_[b], w.ctx);
    flight.wires.resize(std::max(flight.wires.size(), flight.parts.size()));
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      prepare(flight.parts[k], w.ctx, flight.wires[k]);
    }
    w.method->encode(buckets_[b], w.ctx, flight);
    flight.encoded = space_.record();
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
    const Stopwatch watch(timing_.exchange_s);
    run_world(size(), [this](Communicator& comm) {
      exchange(comm, workers_[static_cast<std::size_t>(comm.rank())]);
    });
    bad = first_non_finite();
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

void VirtualWorkers::exchange(Communicator& comm, Worker& w) {
  comm.set_timeout(kNoTimeout);
  if (protocol_.before) {
    w.method->prepare(comm, w.ctx, w.grads);
    const auto turn = space_.turn();  // workers have threads of their own here
    encode(w);
  }
  for (Flight& flight : w.flights) {
    end_bucket(space_, *w.method, flight, w.ctx);
    for (std::size_t k = 0; k < flight.parts.size() && !flight.non_finite; ++k) {
      pride::exchange(comm, *w.method, flight.parts[k], w.ctx, nodes_, w.scratch, flight.wires[k]);
      flight.non_finite = flight.wires[k].non_finite;
    }
    // only worker 0 applies the result, which is the same on all workers; page-locked memory is
    // slow to allocate and stays
    if (protocol_.same_apply && w.ctx.rank > 0 && space_.is_host()) flight.wires.clear();
  }
  w.traffic = comm.traffic();
}

// The flag is the same on all workers.
std::optional<NonFinite> VirtualWorkers::first_non_finite() const {
  for (const Flight& flight : workers_.front().flights) {
    if (flight.non_finite) return flight.non_finite;
  }
  return std::nullopt;
}

void VirtualWorkers::clip_mean(double limit) {
  Worker& first = workers_.front();
  grad_norm_ = std::sqrt(mean_gradient_squares(*first.method, buckets_, first.flights));
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
      space_.copy(values, shared_.span().subspan(at, values.size()));
      at += values.size();
    });
  }
  for (Worker& w : workers_) {
    at = 0;
    if (w.ctx.rank > 0) {
      for_shared(bucket, x, [&](Floats values) {
        space_.copy(shared_.span().subspan(at, values.size()), values);
        at += values.size();
      });
    }
    if (protocol_.delay > 0) {
      w.method->arrive(buckets_[bucket], w.flights[bucket], w.ctx);
    } else {
      w.method->apply(buckets_[bucket], w.flights[bucket], w.ctx, x);
    }
    if (protocol_.same_apply) break;
  }
  settle(bucket);
}

// The servers of the bucket's shards commit their state.
void VirtualWorkers::settle(std::size_t bucket) {
  for (Worker& w : workers_) {
    const Flight& flight = w.flights[bucket];
    for (std::size_t k = 0; k < std::min(flight.parts.size(), flight.wires.size()); ++k) {
      const std::span<const Shard> shards = flight.parts[k].shards;
      const auto pending = flight.wires[k].pending.floats();
      const std::size_t mine = shards.size() == 1 ? 0 : static_cast<std::size_t>(w.ctx.rank);
      if (!pending.empty()) w.method->settle(flight.parts[k], shards[mine], pending);
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
