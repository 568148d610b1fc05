// Methods and their options as a command line holds them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace pride::train {

// "lion", or with options of its own "lion:dense=bf16", "lion-cub:bits=2:sync=none".
struct MethodChoice {
  std::string name;
  std::vector<std::string> options;  // "key=value"
};
MethodChoice parse_method(const std::string& text);

// The options of a choice, checked: throws InvalidArgument if there is no such method or option, or
// if an option is no key=value or given twice.
std::map<std::string, std::string> checked_options(const MethodChoice& choice);

// Makes the method of `text` for so many ranks, without parameters to speak of. Throws
// InvalidArgument if there is no such method, option or value, or not for so many ranks.
void check_method(const std::string& text, int world);

// Throws InvalidArgument on a text without a key or "=", and on a key that is given twice; `where`
// is what the person wrote them behind.
std::map<std::string, std::string> parse_method_options(const std::vector<std::string>& texts,
                                                        const std::string& where = "--method-opt");

}  // namespace pride::train
