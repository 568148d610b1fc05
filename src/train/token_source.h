// What a language model reads: runs of tokens, in memory or mapped from shards, and their windows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pride/train/task.h"
#include "train/text/vocabulary.h"

namespace pride::train {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // Sizes of the runs. No window spans two of them.
  virtual std::span<const std::size_t> sizes() const noexcept = 0;
  // Tokens [begin, begin + out.size()) of a run. Throws DataError on one outside the vocabulary.
  virtual void copy(std::size_t run, std::size_t begin, std::span<std::int64_t> out) const = 0;

  std::size_t total() const noexcept;
};

// Windows of `context` tokens and their successors, side by side in each run, from an offset that
// is below `slack`, the same in all runs.
class Windows {
 public:
  Windows(const TokenSource& source, std::size_t context, std::size_t slack);

  std::size_t size() const noexcept { return first_.back(); }
  // The context + 1 tokens of window `index`. REQUIRES: index < size(), offset <= slack.
  void read(std::size_t index, std::size_t offset, std::span<std::int64_t> out) const;

 private:
  const TokenSource& source_;
  std::size_t context_;
  std::vector<std::size_t> first_;  // of each run, and the number of all
};

// The data of the task lm: bytes of text, or shards where --vocab is given.
struct LmData {
  std::unique_ptr<TokenSource> train, valid;
  std::shared_ptr<const Vocabulary> vocabulary;  // null: bytes
  DataFacts facts;

  std::int64_t vocabulary_size() const noexcept {
    return vocabulary ? static_cast<std::int64_t>(vocabulary->size()) : 256;
  }
};

// Throws DataError.
LmData load_lm_data(const TrainOptions& options);

}  // namespace pride::train
