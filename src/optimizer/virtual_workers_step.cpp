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

void VirtualWorkers::Impl::hand_over(std::size_t worker) {
  if (std::ranges::none_of(frames, &Frames::handed_over)) timing = {};
  const Stopwatch watch(timing.encode_s);
  std::vector<ParameterPlace> room;
  for (std::size_t s = 0; s < sections.size(); ++s) {
    SectionStep& step = workers[worker][s];
    step.ctx.lean = true;
    step.grads = {.places = step.gradients.data(), .factor = gradient_factor};
    // with shared values it encodes after an exchange of all
    const bool shares = step.protocol.preliminary.has_value();
    if (step.protocol.keeps_gradient || (shares && !step.is_local())) keep_gradient(worker, s);
    for (std::size_t t = step.unused.size(); t-- > 0;) {
      if (step.unused[t] == 0) step.method->tensor_ready(t, step.ctx, step.grads);
    }
    if (shares) continue;
    if (step.protocol.whole_gradient)
      step.buckets.encode_preliminary(step.ctx, step.grads, std::nullopt);
    encode(worker, s);
    for (std::size_t b = 0; b < step.buckets.size(); ++b) {  // local steps
      const Flight& flight = flight_of(worker, s, b);
      if (step.protocol.delay == 0 && !flight.parts.empty()) continue;
      step.buckets.apply(b, flight, step.ctx, step.section->view(sink(), room));
    }
  }
  frames[worker].handed_over = true;
}

// Copies the gradient as the method would read it: as float32, multiplied by the factor.
void VirtualWorkers::Impl::keep_gradient(std::size_t worker, std::size_t section) {
  SectionStep& step = workers[worker][section];
  const Layout& own = step.section->layout;
  FlatBuffer& kept = frames[worker].kept[section];
  if (kept.size() == 0) kept = FlatBuffer::room(own.flat_size(), space);
  for (std::size_t t = 0; t < own.tensors().size(); ++t) {
    const TensorSlot& slot = own.tensors()[t];
    if (step.unused[t] != 0) continue;
    space.run(kernels::Widen{step.grads.of(t, slot.offset, slot.offset + slot.n),
                             kept.span().subspan(slot.offset, slot.n)});
  }
  step.grads = {.flat = kept.data()};
}

Flight& VirtualWorkers::Impl::flight_of(std::size_t worker, std::size_t section,
                                        std::size_t bucket) {
  const int index = sections[section].buckets[bucket].index;
  return frames[worker].flights[static_cast<std::size_t>(index)];
}

void VirtualWorkers::Impl::encode(std::size_t worker, std::size_t section) {
  const SectionStep& step = workers[worker][section];
  for (std::size_t b = 0; b < step.buckets.size(); ++b) {
    step.buckets.encode(b, step.ctx, step.grads, flight_of(worker, section, b));
  }
}

// --- All workers. --------------------------------------------------------------------------------

std::optional<NonFinite> VirtualWorkers::Impl::exchange_and_apply() {
  for (Frames& of : frames) {
    of.handed_over = false;
    of.traffic.assign(sections.size(), {});
  }
  Steps& first = workers.front();
  for (std::size_t s = 0; s < sections.size(); ++s) {
    if (first[s].protocol.preliminary) share(s);
  }
  std::optional<NonFinite> bad;
  {
    const Stopwatch watch(timing.exchange_s);
    bad = exchange();
  }
  const Stopwatch watch(timing.apply_s);
  grad_norm = 0;
  if (options.clip_global_norm > 0 && !bad) clip_mean();
  for (const auto& [section, bucket] : sections.by_bucket()) {
    if (!bad && !flight_of(0, section, bucket).parts.empty()) take_result(section, bucket);
  }
  if (bad && first.front().protocol.delay > 0) {  // then there is one section
    for (Steps& steps : workers) {
      steps.front().method->local()->drop(steps.front().ctx, *bad);
    }
    bad.reset();
  }
  for (const SectionStep& step : first) {
    if (step.is_local()) step.method->local()->to_common(step.x, step.ctx.frozen);
  }
  return bad;
}

// A section's exchange of Protocol::preliminary, after which all encode.
void VirtualWorkers::Impl::share(std::size_t section) {
  const Stopwatch watch(timing.encode_s);
  const auto& part = workers.front()[section].protocol.preliminary;
  for_workers([&](std::size_t w) {
    SectionStep& step = workers[w][section];
    step.buckets.encode_preliminary(step.ctx, step.grads, part);
  });
  InProcess all(
      *part,
      ranks(section,
            [&](std::size_t w) -> Wire& { return workers[w][section].buckets.preliminary(); }),
      {});
  all.begin();
  all.serve(0);
  all.end(true);
  for (const Steps& steps : workers) {
    steps[section].buckets.take_preliminary(steps[section].ctx);
  }
  for_workers([&](std::size_t w) { encode(w, section); });
}

// Moves the frames of all buckets, part by part, as ranks do. Returns the first flag.
std::optional<NonFinite> VirtualWorkers::Impl::exchange() {
  for_workers([&](std::size_t w) {
    for (const auto& [section, bucket] : sections.by_bucket()) {
      const SectionStep& step = workers[w][section];
      step.buckets.finish_frames(step.ctx, flight_of(w, section, bucket));
    }
  });
  std::size_t k = 0;
  while (exchange_parts(k)) ++k;
  for (const Flight& flight : frames.front().flights) {
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
  std::vector<char> for_all;  // by part: not worker 0 alone applies the results
  std::vector<Task> tasks;
  bool more = false;
  for (std::size_t b = 0; b < sections.by_bucket().size(); ++b) {
    const std::size_t section = sections.by_bucket()[b].section;
    const Flight& flight = frames.front().flights[b];
    if (k >= flight.parts.size() || flight.non_finite) continue;
    more = more || k + 1 < flight.parts.size();
    const auto wire = [&](std::size_t w) -> Wire& { return frames[w].flights[b].wires[k]; };
    InProcess& part = parts.emplace_back(flight.parts[k], ranks(section, wire), options.nodes);
    if (part.begin()) {  // nothing more of this bucket is exchanged
      parts.pop_back();
      continue;
    }
    for_all.push_back(workers.front()[section].protocol.same_apply ? 0 : 1);
    for (std::size_t i = 0; i < part.tasks(); ++i) tasks.push_back({&part, i});
  }
  run_parallel(tasks.size(), [&](std::size_t i) { tasks[i].part->serve(tasks[i].number); });
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i].end(for_all[i] != 0);
  for (std::size_t w = 0; w < workers.size(); ++w) {
    for (std::size_t b = 0; b < frames[w].flights.size(); ++b) {
      Flight& flight = frames[w].flights[b];
      if (k < flight.parts.size()) {
        workers[w][sections.by_bucket()[b].section].take_flag(flight, k);
      }
    }
  }
  return more;
}

template <typename WireOf>
std::vector<InProcess::Rank> VirtualWorkers::Impl::ranks(std::size_t section,
                                                         const WireOf& wire_of) {
  std::vector<InProcess::Rank> ranks;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    const SectionStep& step = workers[w][section];
    ranks.push_back({*step.method, step.ctx, wire_of(w), frames[w].traffic[section]});
  }
  return ranks;
}

// A device has one queue, and the workers' work on it one order.
template <typename Body>
void VirtualWorkers::Impl::for_workers(const Body& body) {
  if (space.is_host()) return run_parallel(workers.size(), body);
  for (std::size_t w = 0; w < workers.size(); ++w) body(w);
}

void VirtualWorkers::Impl::clip_mean() {
  double squares = 0;
  for (const SectionStep& step : workers.front()) {
    squares += step.buckets.mean_squares(frames.front().flights);
  }
  grad_norm = std::sqrt(squares);
  const double limit = options.clip_global_norm;
  if (grad_norm <= limit) return;
  for (Steps& steps : workers) {
    for (SectionStep& step : steps) step.ctx.grad_scale = static_cast<float>(limit / grad_norm);
  }
}

// Visits the values of a bucket that workers share.
template <typename Body>
void VirtualWorkers::Impl::for_shared(std::size_t section, std::size_t bucket, const Body& body) {
  const SectionStep& step = workers.front()[section];
  const Bucket& b = step.section->buckets[bucket];
  for (const auto buffer : step.method->state().buffers(StateKind::kShared)) {
    body(buffer.subspan(b.begin, b.size()));
  }
  if (step.is_local()) return;
  for (const Shard& shard : b.shards) {
    for (const Piece& piece : shard.pieces) body(step.x.of(piece));
  }
}

// Each worker commits its own state and makes the same step in the shared values, which are reset
// before it. With a delay the method keeps the result until it adopts it.
void VirtualWorkers::Impl::take_result(std::size_t section, std::size_t bucket) {
  const Protocol& protocol = workers.front()[section].protocol;
  std::size_t at = 0;
  if (!protocol.same_apply && world > 1) {
    for_shared(section, bucket, [&](Floats values) { at += values.size(); });
    if (shared.size() < at) shared = FlatBuffer::room(at, space);
    at = 0;
    for_shared(section, bucket, [&](Floats values) {
      space.run(kernels::Copy{values, shared.span().subspan(at, values.size())});
      at += values.size();
    });
  }
  for (std::size_t w = 0; w < workers.size(); ++w) {
    if (protocol.same_apply && w > 0) break;
    at = 0;
    if (w > 0) {
      for_shared(section, bucket, [&](Floats values) {
        space.run(kernels::Copy{shared.span().subspan(at, values.size()), values});
        at += values.size();
      });
    }
    const SectionStep& step = workers[w][section];
    const Flight& flight = flight_of(w, section, bucket);
    if (protocol.delay > 0) {
      step.buckets.keep_result(bucket, flight, step.ctx);
    } else {
      step.buckets.apply(bucket, flight, step.ctx, step.x);
    }
  }
}

}  // namespace pride
