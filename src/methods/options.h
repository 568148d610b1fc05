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
// REQUIRES: `options` has it.
double number_option(const std::string& method, const OptionValues& options,
                     const std::string& name, double least, double most);
std::int64_t whole_option(const std::string& method, const OptionValues& options,
                          const std::string& name, std::int64_t least, std::int64_t most);
bool yes_no_option(const std::string& method, const OptionValues& options, const std::string& name);

// Index of the option's value among the words; the error lists them all.
std::size_t word_option(const std::string& method, const OptionValues& options,
                        const std::string& name, std::initializer_list<std::string_view> words);

// Throws InvalidArgument if a space on a device has an option that only the host supports.
// `remedy`: what helps too, such as "choose native, or ".
void check_on_host(const std::string& method, const Space& space, bool supported,
                   std::string_view option, std::string_view remedy = "");

}  // namespace pride::methods
