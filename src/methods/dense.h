// What the methods on the mean gradient declare alike.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "methods/dense_mean.h"

namespace pride::methods {

// Option `dense`.
Dense dense_option(const std::string& method, const MethodContext& ctx);
MethodInfo dense_info(std::string title, std::string source);

}  // namespace pride::methods
