// Distributed Signum, both forms: signs of the momentum up, the majority or the count down.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// Majority vote. Bernstein et al. 2018, arXiv:1810.05291, Algorithm 1. Option tie = hash | zero.
std::unique_ptr<Method> make_signum_vote(const MethodContext& ctx);
MethodInfo signum_vote_info(int world);

// Average of signs: D-SIGNUM (Avg) of Liu et al. 2024, arXiv:2404.00438.
std::unique_ptr<Method> make_signum_avg(const MethodContext& ctx);
MethodInfo signum_avg_info(int world);

}  // namespace pride::methods
