// Text to shards of tokens, split into training and validation; and the documents that it reads:
// the texts of files, of folders and of the lines of JSON files, one after the other.
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

// Where <|endoftext|> stands between documents.
enum class EndOfText { kNone, kBefore, kAfter };

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs = {};
  std::filesystem::path out = {};  // folder
  ShardLayout layout = ShardLayout::kPlain;
  EndOfText end_of_text = EndOfText::kAfter;
  std::uint64_t shard_tokens = 0;  // 0: one file, train.bin or val.bin; else train_000001.bin, ...
  double valid_share = 0.1;        // of documents, or of the bytes of the only one
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

// The files in `folder` that have names of shards that tokenize() writes (train.bin,
// val_000001.bin, ...), ascending. Throws DataError: cannot be listed, though it is there.
std::vector<std::filesystem::path> earlier_shards(const std::filesystem::path& folder);

// True if `inputs` are a single text: it is then split by bytes, and by default has no
// <|endoftext|>.
bool is_single_text(const std::vector<std::filesystem::path>& inputs);

// Documents validate by the hash of their name, a single text by its last bytes, cut before a
// character. The same files give the same shards on every machine. `progress` is told the bytes
// done, now and then. Throws DataError; InvalidArgument if <|endoftext|> is asked for and not in
// the vocabulary. The shards appear under their names when all of them are whole, in place of files
// of the same names; nothing has changed if it throws before.
Tokenized tokenize(const TokenizeOptions& options, const Vocabulary& vocabulary,
                   const std::function<void(std::uint64_t)>& progress);

struct Document {
  std::string name;       // path below the folder given or file name; of a line, with ":<line>"
  std::string_view text;  // valid during the call
};

// A source of documents, listed but not read yet.
struct DocumentFile {
  std::filesystem::path path;
  std::string name;
  bool lines = false;        // a JSON text per line (*.jsonl in any case), each with a string under
                             // the field
  bool skip_binary = false;  // found in a folder: not a document if it has a NUL byte
};

// The files that `inputs` mean: a file itself, a folder every regular file below it, in order of
// relative path. Throws DataError if one is not there.
std::vector<DocumentFile> list_documents(const std::vector<std::filesystem::path>& inputs);

// Calls `take` for each document of the file that is not empty, in order; the file is mapped, not
// read whole. Throws DataError, naming file and line: not JSON, no string under `field`, a NUL byte
// in a text that was given by its own name.
void read_documents(const DocumentFile& file, const std::string& field,
                    const std::function<void(const Document&)>& take);

}  // namespace pride::train
