// The vocabulary of a byte-level BPE in GPT-2's format: tokens with their bytes, and merges.
// SPDX-License-Identifier: Apache-2.0
// Source    Radford et al. 2019, encoder.py; the files encoder.json and vocab.bpe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pride::train {

using Token = std::uint16_t;
inline constexpr std::size_t kMostTokens = 65536;
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// Two neighbours become one token. Of all possible merges the one of lowest rank is made first.
struct Merge {
  std::uint32_t rank = 0;
  Token result = 0;
};

class Vocabulary {
 public:
  // Reads encoder.json (or vocab.json) and vocab.bpe (or merges.txt) from `folder`. Each byte must
  // have a token, the ids must be 0 to size() - 1, and each half of a merge must be a byte or the
  // result of an earlier one. Throws DataError, naming file and line or token.
  explicit Vocabulary(const std::filesystem::path& folder);

  std::size_t size() const noexcept { return bytes_.size(); }
  // XXH3-64 of the merges, seeded by that of the ids.
  std::uint64_t hash() const noexcept { return hash_; }

  // The bytes of a token. REQUIRES: token < size().
  std::string_view bytes(Token token) const noexcept { return bytes_[token]; }
  Token token_of(std::uint8_t byte) const noexcept { return of_byte_[byte]; }
  // The token <|endoftext|>, which no text encodes to; nothing if the vocabulary has none.
  std::optional<Token> end_of_text() const noexcept { return end_of_text_; }

  std::optional<Merge> merge(Token left, Token right) const {
    const auto found = merges_.find(std::uint32_t{left} << 16 | right);
    if (found == merges_.end()) return std::nullopt;
    return found->second;
  }

  // The tokens' bytes, one after the other. Throws InvalidArgument on one that is not below size().
  std::string decode(std::span<const Token> tokens) const;

 private:
  std::vector<std::string> bytes_;
  std::array<Token, 256> of_byte_{};
  std::unordered_map<std::uint32_t, Merge> merges_;  // by left << 16 | right
  std::optional<Token> end_of_text_;
  std::uint64_t hash_ = 0;
};

// The number of tokens. Null: tokens are bytes.
inline std::int64_t n_tokens(const Vocabulary* vocabulary) noexcept {
  return vocabulary != nullptr ? static_cast<std::int64_t>(vocabulary->size()) : 256;
}

}  // namespace pride::train
