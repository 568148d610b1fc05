// The parameters that ranks with local steps have in common, and each rank's own.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "methods/local_steps.h"

namespace pride::methods {

void LocalSteps::begin(ConstView x) {
  fault_step_ = -1;
  std::ranges::fill(handed_over_, -1);  // set by a step that failed and is repeated
  copy_to_common(x, held_);
}

ConstView LocalSteps::common(View x, std::vector<ParameterPlace>& room) const {
  if (held_ == layout_.tensors().size()) return {.flat = common_.span(), .memory = &space_};
  room.clear();
  for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    room.push_back({x.f32(t, slot.offset, slot.offset + slot.n), slot.offset});
    if (t < held_) room.back().values = common_.span().subspan(slot.offset, slot.n);
  }
  return {.places = room.data(), .memory = x.memory};
}

// Copies the tensors from `first` on.
void LocalSteps::copy_to_common(ConstView x, std::size_t first) {
  for (std::size_t t = first; t < layout_.tensors().size(); ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    space_.run(kernels::Copy{x.f32(t, slot.offset, slot.offset + slot.n),
                             common_.span().subspan(slot.offset, slot.n)});
  }
}

void LocalSteps::rebase(ConstView x) {
  held_ = layout_.tensors().size();
  copy_to_common(x, 0);
  space_.run(kernels::Fill{drift_.span(), 0});
}

void LocalSteps::to_common(View x, std::span<const char> frozen) const {
  for (std::size_t t = 0; t < held_; ++t) {
    if (!frozen.empty() && frozen[t] != 0) continue;
    const TensorSlot& slot = layout_.tensors()[t];
    space_.run(kernels::Copy{common_.span().subspan(slot.offset, slot.n),
                             x.f32(t, slot.offset, slot.offset + slot.n)});
  }
}

void LocalSteps::to_local(View x, std::span<const char> frozen) const {
  for (std::size_t t = 0; t < held_; ++t) {
    if (!frozen.empty() && frozen[t] != 0) continue;
    const TensorSlot& slot = layout_.tensors()[t];
    fragments_.place(slot.offset, common_.span().subspan(slot.offset, slot.n),
                     drift_.span().subspan(slot.offset, slot.n),
                     x.f32(t, slot.offset, slot.offset + slot.n));
  }
}

}  // namespace pride::methods
