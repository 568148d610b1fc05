// Reader of GPT-2's vocabulary files.
// SPDX-License-Identifier: Apache-2.0
#include "train/text/vocabulary.h"

#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/files.h"
#include "program/utf8.h"
#include "train/data/text.h"

namespace pride::train {
namespace {

constexpr std::size_t kGpt2Tokens = 50'257;

using std::filesystem::path;
using TokenIds = std::unordered_map<std::string, Token>;  // by the name in encoder.json

path find_one(const path& folder, const char* name, const char* other) {
  std::error_code ignored;
  for (const char* candidate : {name, other}) {
    if (std::filesystem::is_regular_file(folder / candidate, ignored)) return folder / candidate;
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw DataError(concat("no vocabulary: ", folder.string(), " is no folder"));
  }
  throw DataError(concat("no vocabulary in ", folder.string(), ": neither ", name, " nor ", other,
                         " exists; GPT-2's files are encoder.json and vocab.bpe"));
}

std::string utf8_of(std::uint32_t code) {  // below U+0800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// GPT-2 names each byte by a visible character: itself if it is printable Latin-1, otherwise the
// next character from U+0100 on.
std::array<std::string, 256> byte_names() {
  std::array<std::string, 256> names;
  std::uint32_t next = 0x100;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool seen = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    names[b] = utf8_of(seen ? b : next++);
  }
  return names;
}

// The bytes that a name stands for; the name itself if it has a character that names no byte.
std::string bytes_of_name(const std::string& name, const std::map<std::string, char>& bytes) {
  std::string text;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t n = std::max<std::size_t>(1, utf8_character(name.substr(at, 4)));
    const auto found = bytes.find(name.substr(at, n));
    if (found == bytes.end()) return name;
    text += found->second;
    at += n;
  }
  return text;
}

TokenIds read_ids(const path& file, const std::string& text) {
  const auto refuse = [&](const auto&... why) {
    throw DataError(concat(file.string(), ": not a vocabulary: ", why...));
  };
  if (text.empty()) refuse("it is empty");
  const nlohmann::json parsed = parse_json(text, concat(file.string(), ": not a vocabulary"));
  if (!parsed.is_object() || parsed.empty()) refuse("not an object of tokens and ids");
  if (parsed.size() > kMostTokens) refuse(parsed.size(), " tokens, at most ", kMostTokens);
  TokenIds ids;
  std::vector<bool> seen(parsed.size());
  for (const auto& [name, id] : parsed.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= parsed.size()) {
      refuse("token \"", name, "\" has the id ", id.dump(), ", expected 0 to ", parsed.size() - 1);
    }
    const auto token = id.get<Token>();
    if (seen[token]) refuse("two tokens have the id ", token);
    seen[token] = true;
    ids[name] = token;
  }
  return ids;
}

// The two halves on each line after the first, which names the version.
class MergeReader {
 public:
  MergeReader(const path& file, const TokenIds& ids, const std::array<std::string, 256>& bytes)
      : file_(file), ids_(ids), known_(ids.size()) {
    for (const std::string& name : bytes) {
      const auto found = ids.find(name);
      if (found == ids.end()) {
        throw DataError(concat(file.string(), ": the vocabulary beside it has no token for the ",
                               "byte named \"", name, "\""));
      }
      known_[found->second] = true;
    }
  }

  std::unordered_map<std::uint32_t, Merge> read(std::string_view text) {
    std::unordered_map<std::uint32_t, Merge> merges;
    for_each_line(text, [&](std::string_view line, std::size_t number) {
      line_ = number;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
      add(line, merges);
    });
    check_all_known();
    return merges;
  }

 private:
  void add(std::string_view line, std::unordered_map<std::uint32_t, Merge>& merges) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      refuse("expected two tokens and one space between them");
    }
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    const Token a = half(left), b = half(right);
    const auto whole = ids_.find(left + right);
    if (whole == ids_.end()) refuse(concat("\"", left, right, "\" is not in the vocabulary"));
    const auto rank = static_cast<std::uint32_t>(merges.size());
    if (!merges.emplace(std::uint32_t{a} << 16 | b, Merge{rank, whole->second}).second) {
      refuse("this merge was given before");
    }
    known_[whole->second] = true;
  }

  // If the list of merges was cut short, no text results in some of the tokens. Vocabularies other
  // than GPT-2's may have such tokens for other reasons.
  void check_all_known() const {
    if (ids_.size() != kGpt2Tokens) return;
    for (const auto& [name, token] : ids_) {
      if (known_[token] || name == kEndOfText) continue;
      throw DataError(concat(file_.string(), ": no merge results in \"", name, "\", token ", token,
                             " of the vocabulary: is the list of merges complete?"));
    }
  }

  // with merges in another order, merging from the left would differ from GPT-2's encoder
  Token half(const std::string& name) const {
    const auto found = ids_.find(name);
    if (found == ids_.end() || !known_[found->second]) {
      refuse(concat("\"", name, "\" is neither a byte nor the result of an earlier merge"));
    }
    return found->second;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw DataError(concat(file_.string(), ":", line_, ": ", why));
  }

  path file_;
  const TokenIds& ids_;
  std::vector<bool> known_;  // bytes and the results so far
  std::size_t line_ = 0;
};

}  // namespace

Vocabulary::Vocabulary(const path& folder) {
  const path ids_file = find_one(folder, "encoder.json", "vocab.json");
  const path merges_file = find_one(folder, "vocab.bpe", "merges.txt");
  const std::string ids_text = read_file(ids_file), merges_text = read_file(merges_file);
  const TokenIds ids = read_ids(ids_file, ids_text);
  const std::array<std::string, 256> names = byte_names();
  merges_ = MergeReader(merges_file, ids, names).read(merges_text);

  std::map<std::string, char> byte_of;
  for (std::size_t b = 0; b < 256; ++b) {
    byte_of[names[b]] = static_cast<char>(b);
    of_byte_[b] = ids.at(names[b]);
  }
  bytes_.resize(ids.size());
  for (const auto& [name, token] : ids) bytes_[token] = bytes_of_name(name, byte_of);
  const auto end = ids.find(std::string(kEndOfText));
  if (end != ids.end()) end_of_text_ = end->second;
  hash_ = hash_bytes(std::as_bytes(std::span(merges_text)),
                     hash_bytes(std::as_bytes(std::span(ids_text))));
}

std::string Vocabulary::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    PRIDE_CHECK(token < size(), "decode: token ", token, ", the vocabulary has ", size());
    text += bytes_[token];
  }
  return text;
}

}  // namespace pride::train
