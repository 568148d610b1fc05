// Lion Cub: Distributed Lion with votes of a few bits, and momentum synchronised where it matters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// Ishikawa et al. 2024, arXiv:2411.16462. Its three factors are options: bits, form; scale,
// granularity, rounding, shared, feedback; sync, sync_every, sync_format.
std::unique_ptr<Method> make_lion_cub(const MethodContext& ctx);
MethodInfo lion_cub_info(int world);

// The same, choosing bits and the synchronised tensors within budget_bits, from the first steps.
std::unique_ptr<Method> make_lion_cub_auto(const MethodContext& ctx);
MethodInfo lion_cub_auto_info(int world);

}  // namespace pride::methods
