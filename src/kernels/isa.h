// Choice of the instruction set: every kernel calls use_selected_isa() before it dispatches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace pride::kernels {

extern std::atomic<bool> isa_selected;

// Reads PRIDE_ISA once. An unusable name leaves the best set selected here, because kernels do not
// throw; active_isa() throws.
void select_isa() noexcept;

inline void use_selected_isa() noexcept {
  if (!isa_selected.load(std::memory_order_acquire)) select_isa();
}

}  // namespace pride::kernels
