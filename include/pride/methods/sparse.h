// The methods that send a few large entries and keep the rest for later steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride::methods {

// Deep gradient compression. Lin et al. 2017, arXiv:1712.01887, Algorithms 1 to 4.
// Options ratio, warmup_steps, clip, masking = yes | no, nesterov = no | yes.
std::unique_ptr<Method> make_dgc(const MethodContext& ctx);
MethodInfo dgc_info(int world);

// Gradient dropping. Aji & Heafield 2017, arXiv:1704.05021, Algorithm 1.
// Options ratio, threshold = tensor | global.
std::unique_ptr<Method> make_graddrop(const MethodContext& ctx);
MethodInfo graddrop_info(int world);

}  // namespace pride::methods
