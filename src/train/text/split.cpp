// SPDX-License-Identifier: Apache-2.0
#include "train/text/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "pride/error.h"
#include "train/text/utf8.h"

namespace pride::train {
namespace {

// White space is Unicode's property of that name, written out: PCRE2's own \s has U+180E too.
constexpr const char* kPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{Z}\t-\r\x{85}\p{L}\p{N}]+)"
    R"(|[\p{Z}\t-\r\x{85}]+(?![^\p{Z}\t-\r\x{85}])|[\p{Z}\t-\r\x{85}]+)";

bool is_space(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Between an ASCII character that is no white space and an ASCII white space every word ends, and
// neither side can see the other: no word has a space but at its start, and only words of white
// space look ahead.
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
    // the check of the subject would be one of all that is left, for each word
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
