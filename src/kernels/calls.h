// The calls of kernels that a space runs, as structs of their arguments. Contracts are those of the
// kernels of the same names, for tensors in any dtype.
// SPDX-License-Identifier: Apache-2.0
//
// The types of a call's members say what it does with memory: it reads values that are const, and
// reads and writes all others. A device orders calls by that alone (device/touches.h).
// run() runs a call on the host, at once.
#pragma once

#include <variant>

#include "kernels/level_calls.h"
#include "kernels/sign_calls.h"
#include "kernels/value_calls.h"

namespace pride::kernels {

using Call = std::variant<LionSigns, LionBlend, PackSigns, CellBits, CheckFinite, ApplySigns,
                          ApplyTernary, ApplyCounts, ApplyPackedCounts, ApplyDecay, Compress,
                          KeepFeedback, ApplyScaledSigns, AdamW, DenseLion, SgdMomentum, Widen,
                          Copy, Fill, Poison, Sum, Scale, FindNonzero, Adopt, Publish, Measure,
                          MeasureBlocks, Quantise, WriteValues, ReadValues>;

}  // namespace pride::kernels
