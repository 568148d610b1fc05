// DeviceSpace: the kernels for levels of few bits.
// SPDX-License-Identifier: Apache-2.0
#include "device/device_space.h"
#include "device/jobs.h"

namespace pride {
namespace {

using device::Kernel, device::betas_of, device::fault_of, device::values_of;

static_assert(static_cast<device::u32>(LevelKernels::Size::kSum) == device::kSumOfSizes);
static_assert(static_cast<device::u32>(LevelKernels::Size::kSquares) == device::kSumOfSquares);
static_assert(static_cast<device::u32>(LevelKernels::Size::kLargest) == device::kLargestSize);
static_assert(kernels::kZeroFloor == device::kZeroFloor && kernels::kRunWords == 8);

device::Lines lines_of(const LevelKernels::Lines& lines) {
  return {lines.words.data(), lines.first_word, lines.shape.n_words,
          static_cast<device::u32>(lines.shape.bits)};
}

device::Measure measure_of(const LevelKernels::BlendOf& u, LevelKernels::Size size) {
  device::Measure job{};
  job.g = values_of(u.g);
  job.m = u.m.data();
  job.e = u.e.empty() ? nullptr : u.e.data();
  job.length = u.m.size();
  job.beta1 = u.blend.beta1;
  job.one_minus_beta1 = u.blend.one_minus_beta1;
  job.what = static_cast<device::u32>(size);
  return job;
}

}  // namespace

// Words of a tensor in all lines, as if they lay behind each other: lines of several tensors
// interleave, and a frame is read and written only as lines.
DeviceSpace::Range::Range(const Lines& lines, std::size_t n)
    : Range(lines.words.data() + lines.first_word * static_cast<std::size_t>(lines.shape.bits),
            lines.words.empty() ? 0
                                : sizeof lines.words.front() * words_for(n) *
                                      static_cast<std::size_t>(lines.shape.bits)) {}

void DeviceSpace::measure(const BlendOf& u, Size size, std::span<double> sums) {
  device::Measure job = measure_of(u, size);
  job.sums = sums.data();
  job.n = sums.size() * device::kChunk;
  add(Kernel::k_measure, job, {from(u.g), from(u.m), from(u.e), to(sums)});
}

void DeviceSpace::measure_blocks(const BlendOf& u, Size size, int largest,
                                 kernels::BlockScales<float> steps) {
  device::Measure job = measure_of(u, size);
  job.steps = steps.of.data();
  job.lead = steps.lead;
  job.n = steps.of.size() * device::kChunk;
  job.largest = largest;
  add(Kernel::k_measure, job, {from(u.g), from(u.m), from(u.e), to(steps.of)});
}

void DeviceSpace::quantise(const BlendOf& u, const Steps& steps, std::span<float> m,
                           std::span<float> next, const Lines& lines, FaultSlot fault) {
  add(Kernel::k_levels,
      device::Levels{values_of(u.g), m.data(), u.e.empty() ? nullptr : u.e.data(), steps.of.data(),
                     next.data(), steps.length, steps.first, m.size(), lines_of(lines),
                     lines.integers.data(), static_cast<device::u32>(lines.width),
                     betas_of(u.blend), fault_of(fault)},
      {from(u.g), to(m), from(u.e), from(steps.of), to(next), to({lines, m.size()}),
       to(lines.integers), notes(fault)});
}

void DeviceSpace::write_values(std::span<const float> values, std::span<float> scales,
                               const Lines& lines, FaultSlot fault) {
  add(Kernel::k_write_values,  // which only reads the values
      device::LevelValues{const_cast<float*>(values.data()), scales.data(), values.size(),
                          lines_of(lines), fault_of(fault)},
      {from(values), to(scales), to({lines, values.size()}), notes(fault)});
}

void DeviceSpace::read_values(std::span<const float> scales, const Lines& lines,
                              std::span<float> values) {
  add(Kernel::k_read_values,  // which only reads the scales
      device::LevelValues{
          values.data(), const_cast<float*>(scales.data()), values.size(), lines_of(lines), {}},
      {to(values), from(scales), from({lines, values.size()})});
}

}  // namespace pride
