// The uncompressed methods: an ordinary optimizer on the mean gradient ("global" in the papers).
// Option of all: dense = ordered | native | bf16, who adds up and what is sent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// AdamW. Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2.
std::unique_ptr<Method> make_adamw(const MethodContext& ctx);
MethodInfo adamw_info(int world);

// Lion. Chen et al. 2023, arXiv:2302.06675, Program 1.
std::unique_ptr<Method> make_lion(const MethodContext& ctx);
MethodInfo lion_info(int world);

// SGD with momentum (beta1). Polyak 1964. Option nesterov = no | yes.
std::unique_ptr<Method> make_sgdm(const MethodContext& ctx);
MethodInfo sgdm_info(int world);

}  // namespace pride::methods
