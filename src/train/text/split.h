// Splitting of text into the words that GPT-2's BPE looks at one by one.
// SPDX-License-Identifier: Apache-2.0
// Source    Radford et al. 2019, encoder.py: the pattern of Encoder.pat.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

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

}  // namespace pride::train
