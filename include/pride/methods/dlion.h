// Distributed Lion, both forms: a step costs one bit up and one bit (vote) or the count (average)
// down. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// Majority vote. Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo). Option tie = hash | zero.
std::unique_ptr<Method> make_dlion_vote(const MethodContext& ctx);
MethodInfo dlion_vote_info(int world);

// Average of signs. Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (Avg).
std::unique_ptr<Method> make_dlion_avg(const MethodContext& ctx);
MethodInfo dlion_avg_info(int world);

}  // namespace pride::methods
