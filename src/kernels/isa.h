// Choice of the instruction set: every kernel calls use_selected_isa() before it dispatches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace pride::kernels {

extern std::atomic<bool> isa_selected;

// Reads PRIDE_ISA, once. A name that is not usable leaves the best set in place here, because
// kernels do not throw; active_isa() throws for it.
void select_isa() noexcept;

inline void use_selected_isa() noexcept {
  if (!isa_selected.load(std::memory_order_acquire)) select_isa();
}

}  // namespace pride::kernels
