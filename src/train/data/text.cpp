// load_text: a file or a folder given by the user.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/text.h"

#include <system_error>

#include "pride/error.h"
#include "train/data/shard.h"
#include "train/data/text_folder.h"

namespace pride::train {
namespace {

using std::filesystem::path;

TextCorpus load_file(const path& file) {
  std::string bytes = read_file(file);
  if (bytes.size() < 2) {
    throw DataError(concat(file.string(), ": ", bytes.size(),
                           " bytes of text, at least 2 are needed to train and validate"));
  }
  if (has_shard_header(bytes)) {
    throw DataError(concat(file.string(),
                           ": tokens in llm.c's layout, no text; --vocab takes those of 16 bits"));
  }
  TextCorpus corpus = split_text({{file.filename().generic_string(), std::move(bytes)}});
  corpus.source = concat(file.string(), " (first 90 % of its bytes to train)");
  return corpus;
}

TextCorpus load_folder(const path& folder) {
  const TextFolder found = read_text_folder(folder);
  if (found.files.empty()) {
    const char* hint = found.n_skipped > 0 ? "; shards of tokens need --vocab" : "";
    throw DataError(concat(folder.string(), ": no text below it (", found.n_skipped,
                           " files skipped because they hold NUL bytes", hint, ")"));
  }
  if (found.files.size() == 1 && found.files[0].bytes.size() < 2) {
    throw DataError(concat(folder.string(), ": 1 byte of text, at least 2 are needed"));
  }
  TextCorpus corpus = split_text(found.files);
  corpus.n_skipped = found.n_skipped;
  corpus.source = concat(folder.string(), " (", found.files.size(), " text files, ",
                         found.files.size() == 1 ? "split by bytes" : "split by file");
  corpus.source += found.n_skipped == 0 ? ")" : concat(", ", found.n_skipped, " others skipped)");
  return corpus;
}

}  // namespace

TextCorpus load_text(const path& file_or_folder) {
  std::error_code error;
  const auto status = std::filesystem::status(file_or_folder, error);
  if (std::filesystem::is_directory(status)) return load_folder(file_or_folder);
  if (std::filesystem::is_regular_file(status)) return load_file(file_or_folder);
  throw DataError(concat("cannot read text from ", file_or_folder.string(), ": ",
                         error ? error.message() : "neither a file nor a folder"));
}

}  // namespace pride::train
