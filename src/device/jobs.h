// Converts arguments of a space's kernels to those of device kernels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/bodies.h"
#include "kernels/space.h"

namespace pride::device {

inline Betas betas_of(const kernels::Blend& b) {
  return {b.beta1, b.one_minus_beta1, b.beta2, b.one_minus_beta2};
}
inline Hash hash_of(const kernels::HashWords& h) {
  return {h.key, 64 * h.first_word + h.shift, h.flip};
}
inline Values values_of(const pride::Values& v) {
  return {v.data, static_cast<u32>(v.dtype), v.factor, v.scale};
}
// The casts are safe: kernels do not write to what is const in the space's interface.
inline void* data_of(const ConstFloats& f) {
  return f.halved() ? static_cast<void*>(const_cast<u16*>(f.upper)) : const_cast<float*>(f.data);
}
inline bool is_narrow(const ConstFloats& f) { return f.halved() && f.lower == nullptr; }
inline Halves halves_of(const ConstFloats& f) { return {data_of(f), const_cast<u16*>(f.lower)}; }
// REQUIRES: bits of cells.
inline Cells cells_of(const kernels::SharedBits& bits) {
  return {halves_of(bits.x), bits.per_cell, static_cast<u32>(bits.flip)};
}
inline Stored stored_of(const ConstFloats& f) { return {data_of(f), is_narrow(f) ? 1u : 0u}; }
inline Fault fault_of(FaultSlot fault) { return {fault.word, fault.tensor}; }

static_assert(static_cast<u32>(DType::kFloat32) == kFloat32);
static_assert(static_cast<u32>(DType::kBFloat16) == kBFloat16);
static_assert(static_cast<u32>(DType::kFloat16) == kFloat16);
static_assert(kScaleBlock == kernels::kScaleBlock);

}  // namespace pride::device
