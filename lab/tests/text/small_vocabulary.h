// A vocabulary small enough to read: the bytes, a few merges, <|endoftext|>; written as GPT-2's is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app::test {

// The names of the bytes, from GPT-2's bytes_to_unicode(): printable Latin-1 as it is, the rest
// from U+0100 on.
inline std::string byte_name(int byte) {
  const auto seen = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int code = byte;
  if (!seen(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += seen(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

inline std::string name_of(const std::string& bytes) {
  std::string name;
  for (const char c : bytes) name += byte_name(static_cast<unsigned char>(c));
  return name;
}

using Pairs = std::vector<std::pair<std::string, std::string>>;  // of bytes

inline const Pairs& small_merges() {
  static const Pairs merges = {{"t", "h"},  {"th", "e"},      {" ", "the"},     {"a", "a"},
                               {"e", "r"},  {" ", "a"},       {"aa", "a"},      {"i", "n"},
                               {"in", "g"}, {"\xC3", "\xA9"}, {"\xE2", "\x80"}, {" ", " "}};
  return merges;
}

// ids: 0 to 255 the bytes in reverse order, then one for each merge, then <|endoftext|>
inline nlohmann::json small_ids(const Pairs& merges = small_merges()) {
  nlohmann::json ids;
  for (int b = 0; b < 256; ++b) ids[byte_name(b)] = 255 - b;
  int next = 256;
  for (const auto& [left, right] : merges) ids[name_of(left + right)] = next++;
  ids["<|endoftext|>"] = next;
  return ids;
}

inline std::string merges_text(const Pairs& merges = small_merges()) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : merges) text += name_of(left) + " " + name_of(right) + "\n";
  return text;
}

// Writes both files and returns their folder.
inline std::filesystem::path write_small_vocabulary(const TempFolder& folder) {
  folder.write("vocab/encoder.json", small_ids().dump());
  return folder.write("vocab/vocab.bpe", merges_text()).parent_path();
}

}  // namespace pride::app::test
