// SPDX-License-Identifier: Apache-2.0
#include "device/device_space.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "device/jobs.h"

namespace pride {

using device::is_narrow, device::betas_of, device::fault_of, device::halves_of, device::stored_of,
    device::cells_of, device::values_of;

namespace {

device::Rate rate_of(kernels::Step step) { return {step.decay, step.lr}; }

device::Narrow narrow_of(Float16* values, std::span<float> master) {
  return {reinterpret_cast<device::u16*>(values), master.data(), master.size()};
}

using device::Kernel;

}  // namespace

// --- Kernels. ------------------------------------------------------------------------------------

// Whether jobs of the batch and a call with these ranges give other values in another order.
bool DeviceSpace::Batch::conflicts(std::span<const Range> ranges) const {
  const auto overlaps = [](const auto& map, const Range& range) {
    const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
    const auto after = map.lower_bound(begin + range.bytes);
    return after != map.begin() && std::prev(after)->second > begin;
  };
  for (const Range& range : ranges) {
    for (const Use other : {Use::kRead, Use::kNote, Use::kWrite}) {
      if (range.bytes == 0 || (range.use == other && other != Use::kWrite)) continue;
      if (overlaps(used[static_cast<std::size_t>(other)], range)) return true;
    }
  }
  return false;
}

// Ranges are kept disjoint: overlapping ranges are merged.
void DeviceSpace::Batch::use(const Range& range) {
  if (range.bytes == 0) return;
  auto& map = used[static_cast<std::size_t>(range.use)];
  auto begin = reinterpret_cast<std::uintptr_t>(range.begin), end = begin + range.bytes;
  auto at = map.upper_bound(begin);
  if (at != map.begin() && std::prev(at)->second >= begin) --at;
  while (at != map.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = map.erase(at);
  }
  map.emplace_hint(at, begin, end);
}

// The batch that a call joins: the first of its kernel behind all batches that it depends on. Jobs
// of a batch run in any order.
DeviceSpace::Batch& DeviceSpace::batch_of(Kernel kernel, std::span<const Range> ranges) {
  std::size_t joined = n_batches_;
  for (std::size_t b = n_batches_; b-- > 0 && !batches_[b].conflicts(ranges);) {
    if (batches_[b].kernel == kernel) joined = b;
  }
  if (joined < n_batches_) return batches_[joined];
  if (joined == batches_.size()) batches_.emplace_back();
  ++n_batches_;
  Batch& batch = batches_[joined];
  batch.kernel = kernel;
  batch.jobs.clear();
  batch.first.assign(1, 0);
  batch.used = {};
  return batch;
}

void DeviceSpace::add_job(Kernel kernel, std::span<const std::byte> job, std::size_t n,
                          std::initializer_list<Range> ranges) {
  Batch& batch = batch_of(kernel, {ranges.begin(), ranges.size()});
  batch.jobs.insert(batch.jobs.end(), job.begin(), job.end());
  batch.first.push_back(batch.first.back() + (n + device::kChunk - 1) / device::kChunk);
  for (const Range& range : ranges) batch.use(range);
}

// If a launch fails, it and all after it are dropped.
void DeviceSpace::flush() {
  const auto forget = [](DeviceSpace* space) {
    space->n_batches_ = 0;
    space->sent_.clear();
  };
  const std::unique_ptr<DeviceSpace, decltype(forget)> at_the_end(this, forget);
  if (behind_) device_->after(*std::exchange(behind_, std::nullopt));
  for (std::size_t b = 0; b < n_batches_; ++b) {
    device_->launch({batches_[b].kernel, batches_[b].jobs, batches_[b].first});
  }
  for (const Sent& sent : sent_) {
    device_->copy_out(sent.frame.data(), sent.staged, sent.frame.size());
  }
}

// Sets words, before later calls: what is collected stays, unless it uses them.
void DeviceSpace::set(const Range& words, std::uint32_t value) {
  if (words.bytes == 0) return;
  const auto uses = [&](const Batch& batch) { return batch.conflicts({&words, 1}); };
  if (std::ranges::any_of(std::span(batches_).first(n_batches_), uses)) flush();
  device_->fill(const_cast<void*>(words.begin), value, words.bytes / sizeof value);
}

void DeviceSpace::call(const std::function<void(void*)>& body) {
  flush();
  device_->call([this, body] { body(device_->stream()); });
}

void DeviceSpace::forget(std::span<std::uint32_t> words) { set(to(words), device::kNoTensor); }

std::uint32_t DeviceSpace::fault_in(Guard word) {
  std::uint32_t fault = 0;
  read(word, std::span(&fault, 1));
  return fault;
}

void DeviceSpace::clear(std::span<std::uint64_t> words) { set(to(words), 0); }

void DeviceSpace::lion_sign_update(const Values& g, const kernels::Blend& blend,
                                   const kernels::SharedBits& zeros, Floats m,
                                   std::span<std::uint64_t> bits, FaultSlot fault) {
  add(Kernel::k_lion_signs,
      device::LionSigns{values_of(g), stored_of(m), bits.data(), m.size(), betas_of(blend),
                        cells_of(zeros), fault_of(fault)},
      {from(g), from(zeros.x), from(lower_of(zeros.x)), to(m), to(bits), notes(fault)});
}

void DeviceSpace::lion_blend(const Values& g, const kernels::Blend& blend, Floats m,
                             std::span<float> u, FaultSlot fault, Guard guard) {
  add(Kernel::k_lion_blend,
      device::LionBlend{values_of(g), stored_of(m), u.data(), m.size(), betas_of(blend),
                        fault_of(fault), guard},
      {from(g), to(m), to(u), notes(fault), from(guard)});
}

void DeviceSpace::pack_signs(std::span<const float> p, const kernels::SharedBits& zeros,
                             std::span<std::uint64_t> bits, Guard guard, FaultSlot fault) {
  add(Kernel::k_pack_signs,
      device::PackSigns{p.data(), bits.data(), p.size(), cells_of(zeros), guard, fault_of(fault)},
      {from(p), from(zeros.x), from(lower_of(zeros.x)), to(bits), from(guard), notes(fault)});
}

void DeviceSpace::cell_bits(const kernels::SharedBits& cells, std::span<std::uint64_t> bits) {
  add(Kernel::k_cell_bits, device::CellBits{cells_of(cells), bits.data(), cells.x.n},
      {from(cells.x), from(lower_of(cells.x)), to(bits)});
}

void DeviceSpace::check(const Values& g, FaultSlot fault) {
  add(Kernel::k_check, device::Check{values_of(g), g.n, fault_of(fault)}, {from(g), notes(fault)});
}

void DeviceSpace::apply_signs(std::span<const std::uint64_t> bits, kernels::Step step, Floats x) {
  add(Kernel::k_apply_signs,
      device::ApplySigns{bits.data(), nullptr, halves_of(x), x.size(), rate_of(step)},
      {from(bits), to(x), to(lower_of(x))});
}

void DeviceSpace::apply_ternary(std::span<const std::uint64_t> positive,
                                std::span<const std::uint64_t> nonzero, kernels::Step step,
                                Floats x) {
  add(Kernel::k_apply_signs,
      device::ApplySigns{positive.data(), nonzero.data(), halves_of(x), x.size(), rate_of(step)},
      {from(positive), from(nonzero), to(x), to(lower_of(x))});
}

void DeviceSpace::apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                               std::size_t plane_stride, int present, int world, kernels::Step step,
                               Floats x) {
  add(Kernel::k_apply_counts,
      device::ApplyCounts{planes.data(), n_planes, plane_stride, halves_of(x), x.size(),
                          rate_of(step), present, world},
      {from(planes), to(x), to(lower_of(x))});
}

void DeviceSpace::apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                                      std::size_t first_word, int present, int world,
                                      kernels::Step step, Floats x) {
  add(Kernel::k_apply_packed,
      device::ApplyPacked{packed.data(), radix.n_digits, first_word, halves_of(x), x.size(),
                          rate_of(step), present, world, radix.base},
      {from(packed), to(x), to(lower_of(x))});
}

void DeviceSpace::apply_decay(float decay, Floats x) {
  if (decay == 1) return;
  add(Kernel::k_scale, device::Scale{halves_of(x), x.size(), decay}, {to(x), to(lower_of(x))});
}

void DeviceSpace::scale(float factor, std::span<float> x) {
  add(Kernel::k_scale, device::Scale{halves_of(Floats(x)), x.size(), factor}, {to(x)});
}

void DeviceSpace::adamw(const Values& g, const kernels::AdamScalars& s, std::span<float> m,
                        std::span<float> v, Floats x, Guard guard) {
  add(Kernel::k_adamw,
      device::AdamW{values_of(g),
                    m.data(),
                    v.data(),
                    halves_of(x),
                    x.size(),
                    {s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2},
                    s.step_size,
                    s.sqrt_bias2,
                    s.eps,
                    s.decay,
                    guard},
      {from(g), to(m), to(v), to(x), to(lower_of(x)), from(guard)});
}

void DeviceSpace::dense_lion(const Values& g, const kernels::Blend& blend, kernels::Step step,
                             Floats m, Floats x, Guard guard) {
  add(Kernel::k_dense_lion,
      device::DenseLion{values_of(g), stored_of(m), halves_of(x), x.size(), betas_of(blend),
                        rate_of(step), guard},
      {from(g), to(m), to(x), to(lower_of(x)), from(guard)});
}

void DeviceSpace::sgd_momentum(const Values& g, float momentum, bool nesterov, kernels::Step step,
                               std::span<float> m, Floats x, Guard guard) {
  add(Kernel::k_sgd_momentum,
      device::SgdMomentum{values_of(g), m.data(), halves_of(x), x.size(), rate_of(step), momentum,
                          nesterov ? 1u : 0u, guard},
      {from(g), to(m), to(x), to(lower_of(x)), from(guard)});
}

void DeviceSpace::widen(const Values& g, std::span<float> out) {
  add(Kernel::k_widen, device::Widen{values_of(g), out.data(), g.n}, {from(g), to(out)});
}

void DeviceSpace::copy(ConstFloats in, Floats out) {
  add(Kernel::k_copy,
      device::Copy{halves_of(in), halves_of(out), out.size(), is_narrow(in), is_narrow(out)},
      {from(in), from(lower_of(in)), to(out), to(lower_of(out))});
}

void DeviceSpace::fill(std::span<float> x, float value) {
  add(Kernel::k_set, device::Set{x.data(), x.size(), value, nullptr}, {to(x)});
}

void DeviceSpace::poison(std::span<float> x, Guard guard) {
  add(Kernel::k_set,
      device::Set{x.data(), x.size(), std::numeric_limits<float>::quiet_NaN(), guard},
      {to(x), from(guard)});
}

void DeviceSpace::sum(ConstFloats a, std::span<const float> b, Floats out) {
  add(Kernel::k_sum, device::Sum{halves_of(a), b.data(), halves_of(out), out.size()},
      {from(a), from(lower_of(a)), from(b), to(out), to(lower_of(out))});
}

void DeviceSpace::find(std::span<const float> x, FaultSlot found) {
  add(Kernel::k_any, device::Any{x.data(), x.size(), fault_of(found)}, {from(x), notes(found)});
}

void DeviceSpace::adopt(const Float16* values, std::span<float> master) {
  // the kernel only reads the values
  add(Kernel::k_adopt, narrow_of(const_cast<Float16*>(values), master),
      {from({values, 2 * master.size()}), to(master)});
}

void DeviceSpace::publish(std::span<const float> master, Float16* values) {
  add(Kernel::k_publish, narrow_of(values, {const_cast<float*>(master.data()), master.size()}),
      {to({values, 2 * master.size()}), from(master)});
}

// --- Order. --------------------------------------------------------------------------------------

Space::Event DeviceSpace::record() {
  flush();
  return device_->record();
}

// The queue waits when something is queued: once for all calls that come before it.
void DeviceSpace::after(void* stream) {
  if (behind_ && *behind_ != stream) flush();
  behind_ = stream;
}

void DeviceSpace::before(void* stream) {
  flush();
  device_->before(stream);
}

}  // namespace pride
