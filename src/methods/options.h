// Values of a method's own options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "methods/method.h"

namespace pride::methods {

inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;  // largest value of an option

// The option's value. Throw InvalidArgument, naming method, option and value.
// REQUIRES: ctx.options has the option.
double number_option(const std::string& method, const MethodContext& ctx, const std::string& name,
                     double least, double most);
std::int64_t whole_option(const std::string& method, const MethodContext& ctx,
                          const std::string& name, std::int64_t least, std::int64_t most);
bool yes_no_option(const std::string& method, const MethodContext& ctx, const std::string& name);

// Index of the option's value among the words; the error lists them all.
std::size_t word_option(const std::string& method, const MethodContext& ctx,
                        const std::string& name, std::initializer_list<std::string_view> words);

}  // namespace pride::methods
