// Hyper-parameters of a group: from what the user set to the floats that kernels use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/step.h"
#include "pride/optimizer.h"
#include "pride/registry.h"

namespace pride {

// Values of one group with the method's defaults filled in, still in double.
struct GroupValues {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  std::optional<double> momentum = {};  // none: the method has none
  bool cautious_decay = false;
};

// Throws InvalidArgument, naming group and value, if one is out of range.
GroupValues complete_group(const ParamGroup& group, const MethodInfo& info, int index);

// The inverse: all values that the method uses are set.
ParamGroup settings_of(const GroupValues& values, const MethodInfo& info);

// Throws InvalidArgument unless lr is >= 0, and it and lr * weight_decay are finite as floats.
void check_lr(double lr, double weight_decay, int index);

// Rounds each scalar to float once. `step` counts from 0, the group's first.
StepScalars scalars_of(const GroupValues& values, std::int64_t step);

// Digest of the bits of all groups' scalars. It covers Decay::opposite if it
// differs, Adam's scalars if eps is not 0, those of momentum if there is one, and the flags of
// frozen tensors if there are any.
std::uint64_t digest_of(std::span<const StepScalars> groups, std::span<const char> frozen = {});

}  // namespace pride
