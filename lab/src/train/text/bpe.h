// Byte-level BPE: text to tokens, like GPT-2's encoder, and its splitting into words.
// SPDX-License-Identifier: Apache-2.0
// Source    Radford et al. 2019, encoder.py: the pattern of Encoder.pat.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "train/text/vocabulary.h"

namespace pride::train {

// One per thread.
class WordSplitter {
 public:
  WordSplitter();
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

  // Where each word of `text` ends, ascending; the last one is text.size(). Words leave nothing
  // out. Bytes that are not UTF-8 are words of their own, a run of them one word, and the text
  // before them is split as if it ended there.
  void split(std::string_view text, std::vector<std::size_t>& ends);

 private:
  struct Pattern;
  void split_valid(std::string_view text, std::size_t offset, std::vector<std::size_t>& ends);

  std::unique_ptr<Pattern> pattern_;
};

// Where a long text can be cut in two without changing a word: the last such place in the first
// `about` bytes, else the first one after them, else text.size().
std::size_t safe_cut(std::string_view text, std::size_t about) noexcept;

// One per thread: it caches words. Any bytes can be encoded, and decode to themselves. Bytes that
// are not UTF-8 form separate words.
class BpeEncoder {
 public:
  // `vocabulary` must live as long.
  explicit BpeEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Appends the tokens of `text`, in which <|endoftext|> is plain text.
  void encode(std::string_view text, std::vector<Token>& tokens);

  // The same, but each <|endoftext|> is the token of that name.
  // Throws InvalidArgument if there is one in the text and none in the vocabulary.
  void encode_with_ends(std::string_view text, std::vector<Token>& tokens);

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  struct Symbol {
    Token token = 0;
    std::size_t before = 0, after = 0;
  };
  struct Candidate {
    std::uint32_t rank = 0;
    std::size_t at = 0;
    Token left = 0, right = 0, result = 0;
    bool operator>(const Candidate& other) const noexcept {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void encode_word(std::string_view word, std::vector<Token>& tokens);
  void merge(std::string_view word, std::vector<Token>& tokens);
  void consider(std::size_t at, std::uint32_t under_way);
  void add(const Candidate& candidate);

  const Vocabulary& vocabulary_;
  WordSplitter splitter_;
  std::unordered_map<std::string, std::vector<Token>, Hash, std::equal_to<>> known_;
  std::vector<std::size_t> ends_;
  std::vector<Symbol> symbols_;        // of the current word, as a doubly linked list
  std::vector<Candidate> candidates_;  // heap, lowest rank first, then leftmost
  std::vector<Candidate> later_;       // of lower rank than the merges in progress
};

}  // namespace pride::train
