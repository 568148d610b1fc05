// TernGrad: stochastic ternary gradients with a scale that the ranks share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// Wen et al. 2017, arXiv:1705.07878, Algorithm 1, with SGD and momentum on the result.
// Options clip (in standard deviations; 0: none), nesterov = no | yes.
std::unique_ptr<Method> make_terngrad(const MethodContext& ctx);
MethodInfo terngrad_info(int world);

}  // namespace pride::methods
