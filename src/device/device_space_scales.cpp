// DeviceSpace: the kernels for signs with a scale per block.
// SPDX-License-Identifier: Apache-2.0
#include "device/device_space.h"
#include "device/jobs.h"

namespace pride {

using device::Kernel, device::fault_of, device::hash_of, device::values_of;

void DeviceSpace::compress(const Values& g, const kernels::Feedback& f, kernels::Norm norm,
                           kernels::HashWords zeros, std::span<const float> m,
                           std::span<const float> e, std::span<std::uint64_t> bits,
                           kernels::BlockScales<float> scales, FaultSlot fault) {
  add(Kernel::k_compress,
      device::Compress{values_of(g),
                       m.data(),
                       e.data(),
                       bits.data(),
                       scales.of.data(),
                       m.size(),
                       scales.lead,
                       scales.of.size() * device::kChunk,
                       {f.keep, f.take, f.rate},
                       hash_of(zeros),
                       norm == kernels::Norm::kRms ? 1u : 0u,
                       fault_of(fault)},
      {from(g), from(m), from(e), to(bits), to(scales.of), notes(fault)});
}

void DeviceSpace::keep_feedback(const Values& g, const kernels::Feedback& f,
                                std::span<const std::uint64_t> bits,
                                kernels::BlockScales<const float> scales, std::span<float> m,
                                std::span<float> e) {
  add(Kernel::k_keep_feedback,
      device::KeepFeedback{values_of(g),
                           bits.data(),
                           scales.of.data(),
                           m.data(),
                           e.data(),
                           m.size(),
                           scales.lead,
                           {f.keep, f.take, f.rate}},
      {from(g), from(bits), from(scales.of), to(m), to(e)});
}

void DeviceSpace::apply_scaled_signs(std::span<const std::uint64_t> bits,
                                     kernels::BlockScales<const float> scales, float decay,
                                     Floats x) {
  add(Kernel::k_apply_scaled,
      device::ApplyScaled{bits.data(), scales.of.data(), device::halves_of(x), x.size(),
                          scales.lead, decay},
      {from(bits), from(scales.of), to(x), to(lower_of(x))});
}

}  // namespace pride
