// load_text, a file or a folder given by the user: the same bytes in the same order on every
// machine.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/text.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <new>
#include <system_error>

#include "base/digest.h"
#include "pride/error.h"
#include "train/data/shard.h"
#include "train/files.h"

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

namespace {

std::uint64_t path_hash(const std::string& name) {
  return hash_bytes(std::as_bytes(std::span(name)));
}

// One file in ten by hash, and never none or all: then the extreme hash changes sides.
std::vector<bool> choose_validation(const std::vector<TextFile>& files) {
  std::vector<std::uint64_t> hashes;
  std::vector<bool> chosen;
  for (const TextFile& file : files) {
    hashes.push_back(path_hash(file.name));
    chosen.push_back(validates(file.name));
  }
  const auto n = static_cast<std::size_t>(std::count(chosen.begin(), chosen.end(), true));
  if (n == 0) chosen[std::min_element(hashes.begin(), hashes.end()) - hashes.begin()] = true;
  if (n == files.size()) {
    chosen[std::max_element(hashes.begin(), hashes.end()) - hashes.begin()] = false;
  }
  return chosen;
}

std::uint64_t corpus_hash(const TextCorpus& corpus) {
  Digest digest;
  for (const auto* part : {&corpus.train, &corpus.valid}) {
    digest.bytes(std::as_bytes(std::span(*part)));
  }
  return digest.value();
}

}  // namespace

std::string read_file(const path& file, std::size_t most) {
  if (std::filesystem::is_directory(file)) {
    throw DataError(concat("cannot read ", file.string(), ": it is a folder"));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError(concat("cannot open ", file.string()));
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::string bytes;
  while (in) {
    const std::size_t n = bytes.size();
    bytes.resize(n + kChunk);
    in.read(bytes.data() + n, kChunk);
    bytes.resize(n + static_cast<std::size_t>(in.gcount()));
    if (bytes.size() > most) {
      throw DataError(concat(file.string(), " has more than ", most, " bytes"));
    }
  }
  if (in.bad()) throw DataError(concat("cannot read ", file.string()));
  return bytes;
}

TextFolder read_text_folder(const path& folder) {
  TextFolder found;
  for (const path& file : files_below(folder)) {
    std::string bytes = read_file(file);
    if (bytes.find('\0') != std::string::npos) {
      ++found.n_skipped;
    } else if (!bytes.empty()) {
      found.files.push_back({file.lexically_relative(folder).generic_string(), std::move(bytes)});
    }
  }
  std::sort(found.files.begin(), found.files.end(),
            [](const TextFile& a, const TextFile& b) { return a.name < b.name; });
  return found;
}

bool validates(const std::string& name) { return path_hash(name) % 10 == 0; }

TextCorpus split_text(const std::vector<TextFile>& files) {
  TextCorpus corpus;
  corpus.n_files = files.size();
  if (files.size() == 1) {
    const std::string& bytes = files[0].bytes;
    // in this order the product cannot overflow, and both sides get a byte
    const auto border = static_cast<std::ptrdiff_t>(bytes.size() - (bytes.size() + 9) / 10);
    corpus.train.assign(bytes.begin(), bytes.begin() + border);
    corpus.valid.assign(bytes.begin() + border, bytes.end());
  } else if (!files.empty()) {
    const std::vector<bool> chosen = choose_validation(files);
    for (std::size_t i = 0; i < files.size(); ++i) {
      auto& side = chosen[i] ? corpus.valid : corpus.train;
      side.insert(side.end(), files[i].bytes.begin(), files[i].bytes.end());
    }
  }
  corpus.hash = corpus_hash(corpus);
  return corpus;
}

}  // namespace pride::train
