// Shards: files of 16-bit tokens, mapped into memory, in the layouts of nanoGPT and of llm.c.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "program/io/mapped_file.h"
#include "program/io/pending_file.h"
#include "train/text/vocabulary.h"

namespace pride::train {

enum class ShardLayout {
  kPlain,  // little-endian uint16 and nothing else: train.bin and val.bin of nanoGPT
  kLlmc,   // the same behind 256 int32: 20240520, version 1, number of tokens, zeros
};

const char* name_of(ShardLayout layout) noexcept;  // "plain", "llmc"

// True if the bytes begin with a magic number of llm.c: tokens of 16 bits (or swapped), or of 32.
bool has_shard_header(std::string_view bytes) noexcept;

class Shard {
 public:
  // Maps the file; the layout is llm.c's if it begins with that magic number. It reads only the
  // first tokens, to distinguish them from text. Throws DataError: truncated, too long, no token,
  // text, another version, tokens of another size.
  explicit Shard(const std::filesystem::path& file);

  const std::filesystem::path& file() const noexcept { return file_; }
  ShardLayout layout() const noexcept { return layout_; }
  std::span<const Token> tokens() const noexcept { return tokens_; }

  // Throws DataError, naming the file, the place and the token, if one of the `n` tokens from
  // `begin` on is not below `vocabulary`. REQUIRES: begin + n <= tokens().size().
  void check(std::size_t begin, std::size_t n, std::size_t vocabulary) const;

 private:
  std::filesystem::path file_;
  MappedFile mapped_;
  ShardLayout layout_ = ShardLayout::kPlain;
  std::span<const Token> tokens_;
};

// Writes a shard that appears under its name at commit(), whole.
class ShardWriter {
 public:
  ShardWriter(const std::filesystem::path& file, ShardLayout layout);

  // Throws DataError; InvalidArgument if there are too many tokens for llm.c's header.
  void write(std::span<const Token> tokens);
  // Completes and closes the file, still under a temporary name. Then call commit().
  void finish();
  void commit();

  std::uint64_t n_tokens() const noexcept { return n_; }

 private:
  PendingFile out_;
  ShardLayout layout_;
  std::uint64_t n_ = 0;
  bool finished_ = false;
};

struct ShardSet {
  std::vector<Shard> train, valid;  // in order of name
};

// The files *.bin in a folder, ascending. Throws DataError: cannot be listed.
std::vector<std::filesystem::path> list_bin(const std::filesystem::path& folder);

// True if a file of that name is a shard: *.bin with the word "train" or "val", without an adjacent
// letter or digit.
bool is_shard_name(const std::filesystem::path& file);

// A file is on both sides: the caller cuts off its last tenth for validation. A folder has its
// files *.bin with the word "train" in their name, and those with "val".
// Throws DataError: none of either kind, one of both, or as Shard's constructor.
ShardSet open_shards(const std::filesystem::path& file_or_folder);

// XXH3-64 over sizes and tokens: all tokens of a shard up to 2^23, otherwise 2^12 pieces of 2^11
// tokens, spread evenly, because reading 10 GB would take a minute.
std::uint64_t hash_of(const ShardSet& shards);

}  // namespace pride::train
