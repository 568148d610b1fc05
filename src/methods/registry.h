// Making a method by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "pride/method.h"
#include "pride/registry.h"

namespace pride {

// The method's options with defaults filled in. Throws InvalidArgument on a name it does not have.
std::map<std::string, std::string> complete_options(
    std::string_view method, const std::map<std::string, std::string>& given);

// REQUIRES: ctx.options from complete_options(). Throws InvalidArgument on a bad value.
std::unique_ptr<Method> make_method(std::string_view name, const MethodContext& ctx);

}  // namespace pride
