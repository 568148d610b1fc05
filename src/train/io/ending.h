// What a file's name says that it is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace pride::train {

// ".jpg" of "a.JPG": the last ending with its dot, A to Z made small; empty if there is none.
inline std::string ending_of(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  for (char& c : ending) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return ending;
}

}  // namespace pride::train
