// SPDX-License-Identifier: Apache-2.0
#include "pride/tensors.h"

#include "base/step.h"

namespace pride {

const char* name_of(DType dtype) noexcept {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16"};
  return kNames[static_cast<std::size_t>(dtype)];
}

// Widened exactly, then multiplied in float32.
std::span<const float> Values::widen(std::size_t at, std::span<float> out) const {
  const std::size_t n = out.size();
  switch (dtype) {
    case DType::kFloat32:
      std::copy_n(static_cast<const float*>(data) + at, n, out.begin());
      break;
    case DType::kBFloat16:
      to_float(std::span(static_cast<const BFloat16*>(data) + at, n), out);
      break;
    case DType::kFloat16:
      to_float(std::span(static_cast<const Float16*>(data) + at, n), out);
  }
  if (factor != 1) {
    for (float& g : out) g *= factor;
  }
  return out;
}

}  // namespace pride
