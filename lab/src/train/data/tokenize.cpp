// SPDX-License-Identifier: Apache-2.0
#include "train/data/tokenize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/files.h"
#include "program/io/mapped_file.h"
#include "train/text/bpe.h"

namespace pride::train {
namespace {

using std::filesystem::path;

constexpr std::size_t kSegment = std::size_t{1} << 22;  // bytes encoded between two writes

// The shards of one side, started at the first write.
class PartWriter {
 public:
  PartWriter(const TokenizeOptions& options, std::string name)
      : options_(options), name_(std::move(name)) {}

  void write(std::span<const Token> tokens) {
    while (!tokens.empty()) {
      if (!shard_ || room() == 0) begin();
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(room(), tokens.size()));
      shard_->write(tokens.first(n));
      tokens = tokens.subspan(n);
      part.tokens += n;
    }
  }
  // Completes the shards, still under temporary names.
  void finish() {
    if (shard_) shard_->finish();
    if (shard_) finished_.push_back(std::move(shard_));
  }
  // REQUIRES: finish()
  void commit() {
    for (const auto& shard : finished_) shard->commit();
  }

  TokenizedPart part;

 private:
  std::uint64_t room() const {
    if (options_.shard_tokens == 0) return UINT64_MAX;
    return options_.shard_tokens - shard_->n_tokens();
  }
  void begin() {
    finish();
    std::array<char, 32> number{};
    if (options_.shard_tokens != 0) {
      std::snprintf(number.data(), number.size(), "_%06zu", part.files.size() + 1);
    }
    part.files.push_back(options_.out / concat(name_, number.data(), ".bin"));
    shard_ = std::make_unique<ShardWriter>(part.files.back(), options_.layout);
  }

  const TokenizeOptions& options_;
  std::string name_;
  std::unique_ptr<ShardWriter> shard_;
  std::vector<std::unique_ptr<ShardWriter>> finished_;
};

struct Document {
  std::string name;       // path below the folder given or file name; of a line, with ":<line>"
  std::string_view text;  // valid during the call
};

// A source of documents, listed but not read yet.
struct DocumentFile {
  path file;
  std::string name;
  bool lines = false;      // a JSON text per line (*.jsonl in any case)
  bool in_folder = false;  // then a file with a NUL byte is no document
};

class Tokenizer {
 public:
  Tokenizer(const TokenizeOptions& options, const Vocabulary& vocabulary,
            const std::function<void(std::uint64_t)>& progress)
      : options_(options),
        vocabulary_(vocabulary),
        progress_(progress),
        encoder_(vocabulary),
        train_(options, "train"),
        valid_(options, "val") {}

  // A document validates if the hash of its name, as a fraction, is below the share.
  void add(const Document& document) {
    const auto hash = hash_bytes(std::as_bytes(std::span(document.name)));
    const bool validates = static_cast<double>(hash >> 11) * 0x1p-53 < options_.valid_share;
    add(document.text, validates ? valid_ : train_);
  }

  void add_split(std::string_view text) {
    const auto share = static_cast<double>(text.size()) * options_.valid_share;
    auto border = text.size() - std::min(text.size(), static_cast<std::size_t>(std::ceil(share)));
    // not inside a character
    while (border < text.size() && (static_cast<unsigned char>(text[border]) & 0xC0) == 0x80) {
      ++border;
    }
    if (border > 0) add(text.substr(0, border), train_);
    if (border < text.size()) add(text.substr(border), valid_);
  }

  Tokenized finish() {
    const auto refuse = [this](const char* side, const char* help) {
      const auto& inputs = options_.inputs;
      const std::string more = inputs.size() > 1 ? concat(" and ", inputs.size() - 1, " more") : "";
      throw DataError(
          concat("tokenize: no text to ", side, " in ", inputs.front().string(), more, "; ", help));
    };
    if (train_.part.tokens == 0) refuse("train on", "give more documents, or less to validation");
    if (valid_.part.tokens == 0 && options_.valid_share > 0) {
      refuse("validate", "give more documents, a larger share to validation, or a share of 0");
    }
    train_.finish();
    valid_.finish();
    train_.commit();
    valid_.commit();
    return {train_.part, valid_.part};
  }

 private:
  void add(std::string_view text, PartWriter& side) {
    ++side.part.documents;
    if (options_.end_of_text == EndOfText::kBefore) end_text(side);
    while (!text.empty()) {
      const std::string_view segment = text.substr(0, safe_cut(text, kSegment));
      text.remove_prefix(segment.size());
      tokens_.clear();
      options_.named_ends ? encoder_.encode_with_ends(segment, tokens_)
                          : encoder_.encode(segment, tokens_);
      side.write(tokens_);
      side.part.bytes += segment.size();
      progress_(train_.part.bytes + valid_.part.bytes);
    }
    if (options_.end_of_text == EndOfText::kAfter) end_text(side);
  }

  void end_text(PartWriter& side) {
    const Token token = vocabulary_.end_of_text().value();
    side.write({&token, 1});
  }

  const TokenizeOptions& options_;
  const Vocabulary& vocabulary_;
  const std::function<void(std::uint64_t)>& progress_;
  BpeEncoder encoder_;
  PartWriter train_, valid_;
  std::vector<Token> tokens_;
};

void check(const TokenizeOptions& o, const Vocabulary& vocabulary) {
  PRIDE_CHECK(o.valid_share >= 0 && o.valid_share < 1, "tokenize: share of validation ",
              o.valid_share, ", must be 0 or more and below 1");
  const bool needs_end = o.end_of_text != EndOfText::kNone || o.named_ends;
  PRIDE_CHECK(!needs_end || vocabulary.end_of_text(), "tokenize: the vocabulary has no token ",
              kEndOfText, " to end a text with");
  std::error_code error;
  std::filesystem::create_directories(o.out, error);
  if (error) throw DataError(concat("cannot make ", o.out.string(), ": ", error.message()));
}

// "train", "val_000001"
bool is_own_stem(std::string_view stem) {
  for (const std::string_view name : {"train", "val"}) {
    if (!stem.starts_with(name)) continue;
    const std::string_view rest = stem.substr(name.size());
    const bool digits = rest.find_first_not_of("0123456789", 1) == rest.npos;
    if (rest.empty() || (rest[0] == '_' && rest.size() >= 7 && digits)) return true;
  }
  return false;
}

DocumentFile file_of(const path& file, std::string name, bool in_folder) {
  return {file, std::move(name), ending_of(file) == ".jsonl", in_folder};
}

void list_folder(const path& folder, std::vector<DocumentFile>& files) {
  const auto first = static_cast<std::ptrdiff_t>(files.size());
  for (const path& file : files_below(folder)) {
    files.push_back(
        file_of(file, file.lexically_relative(folder).generic_string(), /*in_folder=*/true));
  }
  std::sort(files.begin() + first, files.end(),
            [](const DocumentFile& a, const DocumentFile& b) { return a.name < b.name; });
}

void read_lines(const DocumentFile& file, std::string_view text, const std::string& field,
                const std::function<void(const Document&)>& take) {
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = json.is_object() ? json.find(field) : json.end();
    if (found == json.end() || !found->is_string()) {
      throw DataError(concat(file.file.string(), ":", number, ": ",
                             json.is_object() ? concat("no string under \"", field, "\"")
                                              : std::string("not a JSON object")));
    }
    const auto& words = found->get_ref<const std::string&>();
    if (!words.empty()) take({concat(file.name, ":", number), words});
  });
}

// The files of `inputs`.
std::vector<DocumentFile> list_documents(const std::vector<path>& inputs) {
  std::vector<DocumentFile> files;
  for (const path& input : inputs) {
    std::error_code error;
    const auto status = std::filesystem::status(input, error);
    if (std::filesystem::is_directory(status)) {
      list_folder(input, files);
    } else if (std::filesystem::is_regular_file(status)) {
      files.push_back(file_of(input, input.filename().generic_string(), /*in_folder=*/false));
    } else {
      throw DataError(concat("cannot read text from ", input.string(), ": ",
                             error ? error.message() : "neither a file nor a folder"));
    }
  }
  return files;
}

// Calls `take` for each non-empty document of the file, in order.
void read_documents(const DocumentFile& file, const std::string& field,
                    const std::function<void(const Document&)>& take) {
  const MappedFile mapped(file.file);
  const std::string_view text = mapped.text();
  if (file.lines) return read_lines(file, text, field, take);
  const std::size_t nul = text.find('\0');
  if (nul != text.npos && !file.in_folder) {
    throw DataError(concat(file.file.string(), ": no text: byte ", nul,
                           " is NUL (a binary file, or one in UTF-16?)"));
  }
  if (!text.empty() && nul == text.npos) take({file.name, text});
}

}  // namespace

std::vector<path> earlier_shards(const path& folder) {
  std::error_code none;
  if (!std::filesystem::exists(folder, none)) return {};
  std::vector<path> files = list_bin(folder);
  std::erase_if(files, [](const path& file) { return !is_own_stem(file.stem().string()); });
  return files;
}

bool is_single_text(const std::vector<path>& inputs) {
  const std::vector<DocumentFile> files = list_documents(inputs);
  return files.size() == 1 && !files[0].lines;
}

Tokenized tokenize(const TokenizeOptions& options, const Vocabulary& vocabulary,
                   const std::function<void(std::uint64_t)>& progress) {
  const std::vector<DocumentFile> files = list_documents(options.inputs);
  check(options, vocabulary);
  Tokenizer tokenizer(options, vocabulary, progress);
  const bool single = files.size() == 1 && !files[0].lines;
  for (const DocumentFile& file : files) {
    read_documents(file, options.field, [&](const Document& document) {
      single ? tokenizer.add_split(document.text) : tokenizer.add(document);
    });
  }
  return tokenizer.finish();
}

}  // namespace pride::train
