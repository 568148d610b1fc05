// Methods that send scaled signs both ways and keep what the signs leave out for the next step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// SignSGD with error feedback. Karimireddy et al. 2019, arXiv:1901.09847, Algorithm 1; distributed
// as in Zheng et al. 2019, arXiv:1905.10936.
std::unique_ptr<Method> make_signsgd_ef(const MethodContext& ctx);
MethodInfo signsgd_ef_info(int world);

// 1-bit Adam. Tang et al. 2021, arXiv:2102.02888, Algorithm 1. Option freeze_steps.
std::unique_ptr<Method> make_onebit_adam(const MethodContext& ctx);
MethodInfo onebit_adam_info(int world);

}  // namespace pride::methods
