// Words of faults: what kernels note of values that are not finite, and what later kernels ask.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/wire.h"

namespace pride {

// A word in which a kernel notes a tensor with a NaN or Inf. The lowest number stays.
struct FaultSlot {
  std::uint32_t* word = nullptr;
  std::uint32_t tensor = 0;

  void note() const noexcept {
    if (tensor < *word) *word = tensor;
  }
};
// A word of faults, or null. A kernel with a guard does nothing if a fault was noted there.
using Guard = const std::uint32_t*;

inline bool is_faulty(Guard guard) noexcept {  // on the host
  return guard != nullptr && *guard != Wire::kNoTensor;
}

}  // namespace pride
