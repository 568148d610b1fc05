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

// The compiled variant of a kernel for the selected instruction set, to be called.
#define PRIDE_DISPATCH(kernel) (::pride::kernels::use_selected_isa(), HWY_DYNAMIC_DISPATCH(kernel))
