// Calls of the kernels of methods that send signs: encode and apply. The rules of calls.h apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/step.h"
#include "kernels/fault.h"
#include "kernels/kernels.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"

namespace pride::kernels {

// ---- Encode -------------------------------------------------------------------------------------

// lion_sign_update. On a device, here and below, shared bits are those of cells.
struct LionSigns {
  Values g;
  Blend blend;
  SharedBits zeros;
  Floats m;
  std::span<std::uint64_t> bits;
  FaultSlot fault;
  void run() const noexcept;
};
struct LionBlend {
  Values g;
  Blend blend;
  Floats m;
  std::span<float> u;
  FaultSlot fault;
  Guard guard = nullptr;
  void run() const noexcept;
};
// If the guard has a fault, all bits become 0 and `fault` is noted.
struct PackSigns {
  std::span<const float> p;
  SharedBits zeros;
  std::span<std::uint64_t> bits;
  Guard guard;
  FaultSlot fault;
  void run() const noexcept;
};
struct CellBits {
  SharedBits cells;
  std::span<std::uint64_t> bits;
  void run() const noexcept;
};

// ---- Apply --------------------------------------------------------------------------------------

struct ApplySigns {
  std::span<const std::uint64_t> bits;
  Step step;
  Floats x;
  void run() const noexcept;
};
struct ApplyTernary {
  std::span<const std::uint64_t> positive, nonzero;
  Step step;
  Floats x;
  void run() const noexcept;
};
struct ApplyCounts {
  std::span<const std::uint64_t> planes;
  std::size_t n_planes, plane_stride;
  int present, world;
  Step step;
  Floats x;
  void run() const noexcept;
};
struct ApplyPackedCounts {
  std::span<const std::uint32_t> packed;
  Radix radix;
  std::size_t first_word;
  int present, world;
  Step step;
  Floats x;
  void run() const noexcept;
};

// ---- Signs with scales of blocks ----------------------------------------------------------------

// Signs and scales of p = feedback(g, m, e), block by block. A scale that is not finite is a fault.
// If g.data is null, g is 0; the same in KeepFeedback.
struct Compress {
  Values g;
  Feedback f;
  Norm norm;
  HashWords zeros;
  std::span<const float> m, e;
  std::span<std::uint64_t> bits;
  BlockScales<float> scales;
  FaultSlot fault;
  void run() const noexcept;
};
struct KeepFeedback {
  Values g;
  Feedback f;
  std::span<const std::uint64_t> bits;
  BlockScales<const float> scales;
  std::span<float> m, e;
  void run() const noexcept;
};
// apply_signs with a scale as the rate.
struct ApplyScaledSigns {
  std::span<const std::uint64_t> bits;
  BlockScales<const float> scales;
  Decay decay;
  Floats x;
  void run() const noexcept;
};

}  // namespace pride::kernels
