// Text to shards of tokens, split into training and validation. Documents are the texts of files,
// of folders (every regular file below them, in order of relative path) and of the lines of JSON
// files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "train/data/shard.h"
#include "train/text/vocabulary.h"

namespace pride::train {

// The place of <|endoftext|> between documents.
enum class EndOfText { kNone, kBefore, kAfter };

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs = {};
  std::filesystem::path out = {};  // folder
  ShardLayout layout = ShardLayout::kPlain;
  EndOfText end_of_text = EndOfText::kAfter;
  std::uint64_t shard_tokens = 0;  // 0: one file, train.bin or val.bin; else train_000001.bin, ...
  double valid_share = 0.1;        // of the documents; of a single document's bytes
  std::string field = "text";      // of a line of a *.jsonl file
  bool named_ends = false;         // <|endoftext|> in a text is the token
};

struct TokenizedPart {
  std::uint64_t documents = 0, bytes = 0, tokens = 0;
  std::vector<std::filesystem::path> files;
};

struct Tokenized {
  TokenizedPart train, valid;
};

// The files in `folder` with names of tokenize()'s shards (train.bin, val_000001.bin, ...),
// ascending. Throws DataError: cannot be listed, though it is there.
std::vector<std::filesystem::path> earlier_shards(const std::filesystem::path& folder);

// True if `inputs` are a single text: it is then split by bytes, and by default has no
// <|endoftext|>.
bool is_single_text(const std::vector<std::filesystem::path>& inputs);

// Documents validate by the hash of their name, a single text by its last bytes, cut before a
// character. The same files give the same shards on every machine. `progress` sometimes gets the
// number of bytes done. Throws DataError; InvalidArgument if the options need <|endoftext|> and the
// vocabulary has none. A file with a NUL byte is left out if it is in a folder, and refused if it
// was given itself. A line without a string under `field` is refused, with its number. The shards
// appear under their names, replacing files there, when all are whole; if an error comes before,
// nothing has changed.
Tokenized tokenize(const TokenizeOptions& options, const Vocabulary& vocabulary,
                   const std::function<void(std::uint64_t)>& progress);

}  // namespace pride::train
