// SPDX-License-Identifier: Apache-2.0
#include "train/text/bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <new>

#include "pride/error.h"
#include "program/utf8.h"

namespace pride::train {
namespace {

constexpr std::size_t kSegment = std::size_t{1} << 20;  // bytes split at a time
constexpr std::size_t kLongestKnown = 64;               // bytes of the longest word in the cache
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

// Merges the pairs of lowest rank, from left to right, until there is none. As GPT-2's encoder, it
// merges all pairs of a rank before pairs that this creates, even if those have a lower rank (only
// possible if an earlier merge has the same result).
// O(n log n), so that a word of many megabytes does not hang.
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

namespace {

// White space is Unicode's property of that name, written out: PCRE2's own \s has U+180E too.
constexpr const char* kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{Z}\t-\r\x{85}\p{L}\p{N}]+)"
    R"(|[\p{Z}\t-\r\x{85}]+(?![^\p{Z}\t-\r\x{85}])|[\p{Z}\t-\r\x{85}]+)";

bool is_space(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

// True between an ASCII character that is no white space and an ASCII white space. Every word ends
// there, and neither side depends on the other: a word has a space only at its start, and only
// words of white space look ahead.
bool cut_at(std::string_view text, std::size_t at) noexcept {
  const char before = text[at - 1];
  return is_space(text[at]) && !is_space(before) && static_cast<unsigned char>(before) < 0x80;
}

}  // namespace

struct WordSplitter::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;

  ~Pattern() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

WordSplitter::WordSplitter() : pattern_(std::make_unique<Pattern>()) {
  int error = 0;
  PCRE2_SIZE where = 0;
  pattern_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_ANCHORED, &error, &where, nullptr);
  if (pattern_->code == nullptr) {
    throw Error(concat("this PCRE2 refuses the pattern of words at ", where, " (error ", error,
                       "); was it built without Unicode?"));
  }
  // only faster; without it, the same matches
  pcre2_jit_compile(pattern_->code, PCRE2_JIT_COMPLETE);
  pattern_->match = pcre2_match_data_create(1, nullptr);
  if (pattern_->match == nullptr) throw std::bad_alloc();
}

WordSplitter::~WordSplitter() = default;

void WordSplitter::split(std::string_view text, std::vector<std::size_t>& ends) {
  ends.clear();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = utf8_prefix(text.substr(at));
    split_valid(text.substr(at, n), at, ends);
    at += n;
    const std::size_t bad = at;
    while (at < text.size() && utf8_character(text.substr(at, 4)) == 0) ++at;
    if (at > bad) ends.push_back(at);
  }
}

void WordSplitter::split_valid(std::string_view text, std::size_t offset,
                               std::vector<std::size_t>& ends) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(pattern_->match);
  for (std::size_t at = 0; at < text.size(); at = found[1]) {
    // with its UTF check PCRE2 would scan the rest of the text for each word
    const int result = pcre2_match(pattern_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                                   pattern_->match, nullptr);
    if (result < 0 || found[1] <= at) {
      throw Error(concat("PCRE2 cannot split a text of ", text.size(), " bytes at byte ", at,
                         " (error ", result, ")"));
    }
    ends.push_back(offset + found[1]);
  }
}

std::size_t safe_cut(std::string_view text, std::size_t about) noexcept {
  if (text.size() <= about) return text.size();
  for (std::size_t at = about; at > 0; --at) {
    if (cut_at(text, at)) return at;
  }
  for (std::size_t at = about + 1; at < text.size(); ++at) {
    if (cut_at(text, at)) return at;
  }
  return text.size();
}

}  // namespace pride::train
