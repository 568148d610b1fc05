// SPDX-License-Identifier: Apache-2.0
#include "train/text/bpe.h"

#include <algorithm>
#include <limits>

#include "pride/error.h"

namespace pride::train {
namespace {

constexpr std::size_t kSegment = std::size_t{1} << 20;  // bytes split at a time
constexpr std::size_t kLongestKnown = 64;               // bytes of a word worth remembering
constexpr std::size_t kMostKnown = std::size_t{1} << 20;
constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

}  // namespace

void BpeEncoder::encode(std::string_view text, std::vector<Token>& tokens) {
  while (!text.empty()) {
    const std::string_view segment = text.substr(0, safe_cut(text, kSegment));
    text.remove_prefix(segment.size());
    splitter_.split(segment, ends_);
    std::size_t begin = 0;
    for (const std::size_t end : ends_) {
      encode_word(segment.substr(begin, end - begin), tokens);
      begin = end;
    }
  }
}

void BpeEncoder::encode_with_ends(std::string_view text, std::vector<Token>& tokens) {
  while (true) {
    const std::size_t at = text.find(kEndOfText);
    encode(text.substr(0, at), tokens);
    if (at == std::string_view::npos) return;
    PRIDE_CHECK(vocabulary_.end_of_text().has_value(), "encode: the text has ", kEndOfText,
                ", the vocabulary has not");
    tokens.push_back(*vocabulary_.end_of_text());
    text.remove_prefix(at + kEndOfText.size());
  }
}

void BpeEncoder::encode_word(std::string_view word, std::vector<Token>& tokens) {
  if (word.size() > kLongestKnown) return merge(word, tokens);
  auto known = known_.find(word);
  if (known == known_.end()) {
    if (known_.size() >= kMostKnown) known_.clear();
    known = known_.emplace(std::string(word), std::vector<Token>()).first;
    merge(word, known->second);
    known->second.shrink_to_fit();
  }
  tokens.insert(tokens.end(), known->second.begin(), known->second.end());
}

// Merges the pairs of lowest rank, from left to right, until there is none. All of one rank are
// merged in one go, as GPT-2's encoder does: what they make waits, even if its rank is lower (which
// it can be only where an earlier merge has the same result).
// O(n log n), so that a word of many megabytes is no trap.
void BpeEncoder::merge(std::string_view word, std::vector<Token>& tokens) {
  symbols_.resize(word.size());
  candidates_.clear();
  for (std::size_t i = 0; i < word.size(); ++i) {
    const Token token = vocabulary_.token_of(static_cast<std::uint8_t>(word[i]));
    symbols_[i] = {token, i == 0 ? kNone : i - 1, i + 1 == word.size() ? kNone : i + 1};
  }
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < word.size(); ++i) consider(i, rank);
  while (true) {
    const bool done = candidates_.empty() || candidates_.front().rank != rank;
    while (done && !later_.empty()) {
      add(later_.back());
      later_.pop_back();
    }
    if (candidates_.empty()) break;
    rank = candidates_.front().rank;
    std::ranges::pop_heap(candidates_, std::greater<>());
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Symbol& left = symbols_[best.at];
    // neighbours may have merged since; a symbol swallowed by its left neighbour has none after it
    if (left.token != best.left || left.after == kNone) continue;
    Symbol& right = symbols_[left.after];
    if (right.token != best.right) continue;
    left.token = best.result;
    left.after = right.after;
    right.after = kNone;
    if (left.after != kNone) symbols_[left.after].before = best.at;
    consider(best.at, rank);
    if (left.before != kNone) consider(left.before, rank);
  }
  for (std::size_t i = 0; i != kNone && i < word.size(); i = symbols_[i].after) {
    tokens.push_back(symbols_[i].token);
  }
}

// Adds the merge of the symbol with the one after it, if there is such a merge.
void BpeEncoder::consider(std::size_t at, std::uint32_t under_way) {
  const Symbol& left = symbols_[at];
  if (left.after == kNone) return;
  const Token right = symbols_[left.after].token;
  if (const auto found = vocabulary_.merge(left.token, right)) {
    const Candidate candidate{found->rank, at, left.token, right, found->result};
    if (found->rank < under_way) return later_.push_back(candidate);
    add(candidate);
  }
}

void BpeEncoder::add(const Candidate& candidate) {
  candidates_.push_back(candidate);
  std::ranges::push_heap(candidates_, std::greater<>());
}

}  // namespace pride::train
