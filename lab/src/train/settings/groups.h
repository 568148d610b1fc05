// --groups: tensors with a method of their own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pride/error.h"
#include "pride/layout.h"
#include "pride/replica.h"

namespace pride::train {

// The parts between the separators, without blanks around them; empty ones are left out.
std::vector<std::string> parts_of(const std::string& text, char separator);

// The text as a finite number; empty if it is none.
std::optional<double> finite_number(const std::string& text);

// One entry of --groups.
struct GroupChoice {
  std::vector<std::string> words;  // items of choose_tensors()
  ParamGroup group = {};           // with its method
};

// "WORDS: METHOD KEY=VALUE ...", several entries separated by ';'. None if the text is empty.
// Throws InvalidArgument, naming the entry, on another form, an unknown method or key, or a value
// that is no number. The optimizer checks other limits.
std::vector<GroupChoice> parse_groups(const std::string& text);

// For a flag's rule: empty, or the error of parsing its text.
template <auto kParse>
std::string wrong(const std::string& text) {
  try {
    kParse(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

// For each tensor the entry that takes it, from 1; 0: none. Throws InvalidArgument on a word that
// takes no tensor, or one of another entry, and if no tensor is left.
std::vector<int> entries_of_tensors(const std::string& text, const Layout& layout);

}  // namespace pride::train
