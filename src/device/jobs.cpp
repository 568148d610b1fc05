// SPDX-License-Identifier: Apache-2.0
#include "device/jobs.h"

#include <cstring>
#include <limits>
#include <type_traits>

namespace pride::device {
namespace {

static_assert(static_cast<u32>(DType::kFloat32) == kFloat32);
static_assert(static_cast<u32>(DType::kBFloat16) == kBFloat16);
static_assert(static_cast<u32>(DType::kFloat16) == kFloat16);
static_assert(static_cast<u32>(kernels::Size::kSum) == kSumOfSizes);
static_assert(static_cast<u32>(kernels::Size::kSquares) == kSumOfSquares);
static_assert(static_cast<u32>(kernels::Size::kLargest) == kLargestSize);
static_assert(kScaleBlock == kernels::kScaleBlock && kZeroFloor == kernels::kZeroFloor);
static_assert(kernels::kRunWords == 8);

// ---- Arguments ----------------------------------------------------------------------------------

Betas betas_of(const kernels::Blend& b) {
  return {b.beta1, b.one_minus_beta1, b.beta2, b.one_minus_beta2};
}
Decay decay_of(const pride::Decay& d) { return {d.same, d.opposite}; }
Rate rate_of(const kernels::Step& step) { return {decay_of(step.decay), step.lr}; }
Hash hash_of(const kernels::HashWords& h) { return {h.key, 64 * h.first_word + h.shift, h.flip}; }
Values values_of(const pride::Values& v) {
  return {v.data, static_cast<u32>(v.dtype), v.factor, v.scale};
}
Feedback feedback_of(const kernels::Feedback& f) { return {f.keep, f.take, f.rate}; }
// The casts are safe, here and below: kernels write to nothing that is const in a call.
void* data_of(const ConstFloats& f) {
  return f.halved() ? static_cast<void*>(const_cast<u16*>(f.upper)) : const_cast<float*>(f.data);
}
bool is_narrow(const ConstFloats& f) { return f.halved() && f.lower == nullptr; }
Halves halves_of(const ConstFloats& f) { return {data_of(f), const_cast<u16*>(f.lower)}; }
Stored stored_of(const ConstFloats& f) { return {data_of(f), is_narrow(f) ? 1u : 0u}; }
// REQUIRES: bits of cells.
Cells cells_of(const kernels::SharedBits& bits) {
  return {halves_of(bits.x), bits.per_cell, static_cast<u32>(bits.flip)};
}
Fault fault_of(FaultSlot fault) { return {fault.word, fault.tensor}; }
Lines lines_of(std::span<const std::uint64_t> words, kernels::LevelShape shape, std::size_t first) {
  return {const_cast<u64*>(words.data()), first, shape.n_words, static_cast<u32>(shape.bits)};
}
Lines lines_of(const kernels::LevelLines& lines) {
  return lines_of(lines.words, lines.shape, lines.first_word);
}
u16* halves_of(std::span<const Float16> values) {
  return const_cast<u16*>(reinterpret_cast<const u16*>(values.data()));
}
const float* or_null(std::span<const float> e) { return e.empty() ? nullptr : e.data(); }

// ---- Jobs ---------------------------------------------------------------------------------------

template <typename OfKernel>
Job made(Kernel kernel, const OfKernel& of) {
  static_assert(std::is_trivially_copyable_v<OfKernel>);
  Job job{.kernel = kernel, .n = of.n, .bytes = {}};
  std::memcpy(job.bytes.data(), &of, sizeof of);
  return job;
}

Job job_for(const kernels::LionSigns& c) {
  return made(Kernel::k_lion_signs,
              LionSigns{values_of(c.g), stored_of(c.m), c.bits.data(), c.m.size(),
                        betas_of(c.blend), cells_of(c.zeros), fault_of(c.fault)});
}
Job job_for(const kernels::LionBlend& c) {
  return made(Kernel::k_lion_blend,
              LionBlend{values_of(c.g), stored_of(c.m), c.u.data(), c.m.size(), betas_of(c.blend),
                        fault_of(c.fault), c.guard});
}
Job job_for(const kernels::PackSigns& c) {
  return made(Kernel::k_pack_signs, PackSigns{c.p.data(), c.bits.data(), c.p.size(),
                                              cells_of(c.zeros), c.guard, fault_of(c.fault)});
}
Job job_for(const kernels::CellBits& c) {
  return made(Kernel::k_cell_bits, CellBits{cells_of(c.cells), c.bits.data(), c.cells.x.n});
}
Job job_for(const kernels::CheckFinite& c) {
  return made(Kernel::k_check, Check{values_of(c.g), c.g.n, fault_of(c.fault)});
}
Job job_for(const kernels::ApplySigns& c) {
  return made(Kernel::k_apply_signs,
              ApplySigns{c.bits.data(), nullptr, halves_of(c.x), c.x.size(), rate_of(c.step)});
}
Job job_for(const kernels::ApplyTernary& c) {
  return made(Kernel::k_apply_signs, ApplySigns{c.positive.data(), c.nonzero.data(), halves_of(c.x),
                                                c.x.size(), rate_of(c.step)});
}
Job job_for(const kernels::ApplyCounts& c) {
  return made(Kernel::k_apply_counts,
              ApplyCounts{c.planes.data(), c.n_planes, c.plane_stride, halves_of(c.x), c.x.size(),
                          rate_of(c.step), c.present, c.world});
}
Job job_for(const kernels::ApplyPackedCounts& c) {
  return made(Kernel::k_apply_packed,
              ApplyPacked{c.packed.data(), c.radix.n_digits, c.first_word, halves_of(c.x),
                          c.x.size(), rate_of(c.step), c.present, c.world, c.radix.base});
}
Job job_for(const kernels::ApplyDecay& c) {
  return made(Kernel::k_scale, Scale{halves_of(c.x), c.decay == 1 ? 0 : c.x.size(), c.decay});
}
Job job_for(const kernels::Compress& c) {
  return made(
      Kernel::k_compress,
      Compress{values_of(c.g), c.m.data(), c.e.data(), c.bits.data(), c.scales.of.data(),
               c.m.size(), c.scales.lead, c.scales.of.size() * kChunk, feedback_of(c.f),
               hash_of(c.zeros), c.norm == kernels::Norm::kRms ? 1u : 0u, fault_of(c.fault)});
}
Job job_for(const kernels::KeepFeedback& c) {
  return made(Kernel::k_keep_feedback,
              KeepFeedback{values_of(c.g), c.bits.data(), c.scales.of.data(), c.m.data(),
                           c.e.data(), c.m.size(), c.scales.lead, feedback_of(c.f)});
}
Job job_for(const kernels::ApplyScaledSigns& c) {
  return made(Kernel::k_apply_scaled, ApplyScaled{c.bits.data(), c.scales.of.data(), halves_of(c.x),
                                                  c.x.size(), c.scales.lead, decay_of(c.decay)});
}
Job job_for(const kernels::AdamW& c) {
  return made(Kernel::k_adamw,
              AdamW{values_of(c.g),
                    c.m.data(),
                    c.v.data(),
                    halves_of(c.x),
                    c.x.size(),
                    {c.s.beta1, c.s.one_minus_beta1, c.s.beta2, c.s.one_minus_beta2},
                    c.s.step_size,
                    c.s.sqrt_bias2,
                    c.s.eps,
                    decay_of(c.s.decay),
                    c.guard});
}
Job job_for(const kernels::DenseLion& c) {
  return made(Kernel::k_dense_lion,
              DenseLion{values_of(c.g), stored_of(c.m), halves_of(c.x), c.x.size(),
                        betas_of(c.blend), rate_of(c.step), c.guard});
}
Job job_for(const kernels::SgdMomentum& c) {
  return made(Kernel::k_sgd_momentum,
              SgdMomentum{values_of(c.g), c.m.data(), halves_of(c.x), c.x.size(), rate_of(c.step),
                          c.momentum, c.nesterov ? 1u : 0u, c.guard});
}
Job job_for(const kernels::Widen& c) {
  return made(Kernel::k_widen, Widen{values_of(c.g), c.out.data(), c.g.n});
}
Job job_for(const kernels::Copy& c) {
  return made(Kernel::k_copy, Copy{halves_of(c.from), halves_of(c.to), c.to.size(),
                                   is_narrow(c.from), is_narrow(c.to)});
}
Job job_for(const kernels::Fill& c) {
  return made(Kernel::k_set, Set{c.x.data(), c.x.size(), c.value, nullptr});
}
Job job_for(const kernels::Poison& c) {
  return made(Kernel::k_set,
              Set{c.x.data(), c.x.size(), std::numeric_limits<float>::quiet_NaN(), c.guard});
}
Job job_for(const kernels::Sum& c) {
  return made(Kernel::k_sum, Sum{halves_of(c.a), c.b.data(), halves_of(c.out), c.out.size()});
}
Job job_for(const kernels::Scale& c) {
  return made(Kernel::k_scale, Scale{halves_of(Floats(c.x)), c.x.size(), c.factor});
}
Job job_for(const kernels::FindNonzero& c) {
  return made(Kernel::k_any, Any{c.x.data(), c.x.size(), fault_of(c.found)});
}
Job job_for(const kernels::Adopt& c) {
  return made(Kernel::k_adopt, Narrow{halves_of(c.values), c.master.data(), c.master.size()});
}
Job job_for(const kernels::Publish& c) {
  return made(Kernel::k_publish,
              Narrow{halves_of(c.values), const_cast<float*>(c.master.data()), c.master.size()});
}

Measure measure_of(const kernels::BlendOf& u, kernels::Size size) {
  Measure of{};
  of.g = values_of(u.g);
  of.m = u.m.data();
  of.e = or_null(u.e);
  of.length = u.m.size();
  of.beta1 = u.blend.beta1;
  of.one_minus_beta1 = u.blend.one_minus_beta1;
  of.what = static_cast<u32>(size);
  return of;
}
Job job_for(const kernels::Measure& c) {
  Measure of = measure_of(c.u, c.size);
  of.sums = c.sums.data();
  of.n = c.sums.size() * kChunk;
  return made(Kernel::k_measure, of);
}
Job job_for(const kernels::MeasureBlocks& c) {
  Measure of = measure_of(c.u, c.size);
  of.steps = c.steps.of.data();
  of.lead = c.steps.lead;
  of.n = c.steps.of.size() * kChunk;
  of.largest = c.largest;
  return made(Kernel::k_measure, of);
}
Job job_for(const kernels::Quantise& c) {
  return made(
      Kernel::k_levels,
      Levels{values_of(c.u.g), c.m.data(), or_null(c.u.e), c.steps.of.data(), c.next.data(),
             c.steps.length, c.steps.first, c.m.size(), lines_of(c.lines), c.lines.integers.data(),
             static_cast<u32>(c.lines.width), betas_of(c.u.blend), fault_of(c.fault)});
}
Job job_for(const kernels::WriteValues& c) {
  return made(Kernel::k_write_values,
              WrittenValues{values_of(c.values), reinterpret_cast<u16*>(c.scales.data()),
                            c.values.n, lines_of(c.lines), fault_of(c.fault)});
}
Job job_for(const kernels::ReadValues& c) {
  return made(Kernel::k_read_values,
              ReadValues{c.values.data(), reinterpret_cast<const u16*>(c.scales.data()),
                         c.values.size(), lines_of(c.lines, c.shape, c.first_word)});
}

}  // namespace

Job job_of(const kernels::Call& call) {
  return std::visit([](const auto& of) { return job_for(of); }, call);
}

}  // namespace pride::device
