// SPDX-License-Identifier: Apache-2.0
#include "train/data/shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/files.h"
#include "program/utf8.h"

namespace pride::train {
namespace {

using std::filesystem::path;

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

constexpr std::size_t kHeaderInts = 256;
constexpr std::size_t kHeaderBytes = kHeaderInts * sizeof(std::int32_t);
constexpr std::int32_t kMagic = 20240520;        // llm.c, GPT-2 tokens
constexpr std::int32_t kMagicOfWide = 20240801;  // llm.c, Llama 3 tokens: uint32
constexpr std::int32_t kMagicSwapped = static_cast<std::int32_t>(0x88D83401);  // kMagic, big-endian
constexpr std::int32_t kVersion = 1;
constexpr const char *kTrain = "train", *kValid = "val";  // words in the names of files

using Header = std::array<std::int32_t, kHeaderInts>;

[[noreturn]] void refuse(const path& file, const std::string& why) {
  throw DataError(concat(file.string(), ": not a shard of tokens: ", why));
}

// The number of tokens, checked against the file's size.
std::size_t check_header(const path& file, std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) {
    refuse(file, concat("truncated: llm.c's header has ", kHeaderBytes, " bytes, the file ",
                        bytes.size()));
  }
  Header header;
  std::memcpy(header.data(), bytes.data(), kHeaderBytes);
  if (header[1] != kVersion) {
    refuse(file, concat("llm.c's layout of version ", header[1], ", known is ", kVersion));
  }
  const auto n = static_cast<std::uint32_t>(header[2]);
  const std::size_t left = bytes.size() - kHeaderBytes;
  if (left != std::size_t{n} * sizeof(Token)) {
    refuse(file, concat(left < std::size_t{n} * sizeof(Token) ? "truncated: " : "too long: ",
                        "its header counts ", n, " tokens, after it come ", left, " bytes"));
  }
  return n;
}

// True for UTF-8 without control characters that is too long to be tokens by chance.
bool begins_with_text(std::span<const std::byte> bytes) {
  constexpr std::size_t kLeast = 64, kMost = 4096;
  if (bytes.size() < kLeast) return false;
  const auto* chars = reinterpret_cast<const char*>(bytes.data());
  std::string_view text(chars, std::min(bytes.size(), kMost));
  text.remove_suffix(utf8_unfinished(text));
  return utf8_prefix(text) == text.size() && std::ranges::none_of(text, [](char c) {
           return std::iscntrl(static_cast<unsigned char>(c)) &&
                  std::isspace(static_cast<unsigned char>(c)) == 0;
         });
}

std::int32_t first_int(std::span<const std::byte> bytes) {
  std::int32_t first = 0;
  if (bytes.size() >= sizeof first) std::memcpy(&first, bytes.data(), sizeof first);
  return first;
}

bool in_a_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return std::isalnum(byte) != 0 || byte >= 0x80;
}

// "x_train_1" has the word "train", "strain" and "training" have not.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !in_a_word(text[at - 1]);
    if (begins && (end == text.size() || !in_a_word(text[end]))) return true;
  }
  return false;
}

bool is_shard_of(const path& file, std::string_view part) {
  return file.extension() == ".bin" && has_word(file.stem().string(), part);
}

void add(const Shard& shard, Digest& digest) {
  constexpr std::size_t kWhole = std::size_t{1} << 23, kPieces = std::size_t{1} << 12,
                        kPiece = std::size_t{1} << 11;
  const std::span<const Token> tokens = shard.tokens();
  const std::size_t n = tokens.size();
  digest.number(n);
  if (n <= kWhole) {
    digest.bytes(std::as_bytes(tokens));
    return;
  }
  for (std::size_t i = 0; i < kPieces; ++i) {
    const std::size_t at = (n - kPiece) / (kPieces - 1) * i;
    digest.bytes(std::as_bytes(tokens.subspan(at, kPiece)));
  }
}

}  // namespace

std::vector<path> list_bin(const path& folder) {
  std::vector<path> files = entries_in(folder);
  std::erase_if(files, [](const path& file) { return file.extension() != ".bin"; });
  return files;
}

bool is_shard_name(const path& file) {
  return is_shard_of(file, kTrain) || is_shard_of(file, kValid);
}

bool has_shard_header(std::string_view bytes) noexcept {
  const std::int32_t first = first_int(std::as_bytes(std::span(bytes)));
  return first == kMagic || first == kMagicOfWide || first == kMagicSwapped;
}

const char* name_of(ShardLayout layout) noexcept {
  return layout == ShardLayout::kPlain ? "plain" : "llmc";
}

Shard::Shard(const path& file) : file_(file), mapped_(file) {
  const std::span<const std::byte> bytes = mapped_.bytes();
  const std::int32_t first = first_int(bytes);
  // none of these can begin a plain file of GPT-2's tokens: their first token would be above 50256
  if (first == kMagicOfWide) refuse(file, "llm.c's layout for Llama 3, with tokens of 32 bits");
  if (first == kMagicSwapped) refuse(file, "its bytes are in big-endian order");
  std::size_t n = bytes.size() / sizeof(Token), begin = 0;
  if (first == kMagic) {
    layout_ = ShardLayout::kLlmc;
    n = check_header(file, bytes);
    begin = kHeaderBytes;
  } else if (begins_with_text(bytes)) {
    refuse(file, "it begins with text; `pride tokenize` converts it into shards");
  } else if (bytes.size() % sizeof(Token) != 0) {
    refuse(file, concat("truncated: ", bytes.size(), " bytes, must be a multiple of 2"));
  }
  if (n == 0) refuse(file, "it holds no token");
  tokens_ = {reinterpret_cast<const Token*>(bytes.data() + begin), n};
}

void Shard::check(std::size_t begin, std::size_t n, std::size_t vocabulary) const {
  if (vocabulary >= kMostTokens) return;
  const auto part = tokens_.subspan(begin, n);
  const auto bad = std::ranges::find_if(part, [&](Token t) { return t >= vocabulary; });
  if (bad == part.end()) return;
  throw DataError(concat(file_.string(), ": token ", begin + (bad - part.begin()), " is ", *bad,
                         ", the vocabulary has ", vocabulary));
}

ShardWriter::ShardWriter(const path& file, ShardLayout layout) : out_(file), layout_(layout) {
  const Header header{};  // filled in by commit()
  if (layout == ShardLayout::kLlmc) out_.write(header.data(), kHeaderBytes);
}

void ShardWriter::write(std::span<const Token> tokens) {
  n_ += tokens.size();
  PRIDE_CHECK(layout_ == ShardLayout::kPlain || n_ <= std::numeric_limits<std::int32_t>::max(),
              "write shard: ", n_, " tokens, more than the header of llm.c's layout can count");
  out_.write(tokens.data(), tokens.size_bytes());
}

void ShardWriter::finish() {
  if (layout_ == ShardLayout::kLlmc) {
    const Header header{kMagic, kVersion, static_cast<std::int32_t>(n_)};
    out_.rewrite_start(header.data(), kHeaderBytes);
  }
  out_.finish();
  finished_ = true;
}

void ShardWriter::commit() {
  if (!finished_) finish();
  out_.commit();
}

ShardSet open_shards(const path& file_or_folder) {
  ShardSet shards;
  if (!std::filesystem::is_directory(file_or_folder)) {
    shards.train.emplace_back(file_or_folder);
    shards.valid.emplace_back(file_or_folder);
    return shards;
  }
  for (const path& file : list_bin(file_or_folder)) {
    if (!is_shard_name(file)) continue;
    const bool trains = is_shard_of(file, kTrain);
    if (trains && is_shard_of(file, kValid)) {
      throw DataError(concat(file.string(), ": both \"", kTrain, "\" and \"", kValid,
                             "\" are in its name; it can belong to one side only"));
    }
    (trains ? shards.train : shards.valid).emplace_back(file);
  }
  if (shards.train.empty() || shards.valid.empty()) {
    throw DataError(concat(file_or_folder.string(), ": no shards of tokens to ",
                           shards.train.empty() ? "train on" : "validate",
                           ": a file *.bin with the word ", shards.train.empty() ? kTrain : kValid,
                           " in its name is needed; `pride tokenize` makes them from text"));
  }
  return shards;
}

std::uint64_t hash_of(const ShardSet& shards) {
  Digest digest;
  for (const Shard& shard : shards.train) add(shard, digest);
  for (const Shard& shard : shards.valid) add(shard, digest);
  return digest.value();
}

}  // namespace pride::train
