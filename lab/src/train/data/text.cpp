// A file or a folder given by the user, the same bytes in the same order on every machine; and the
// default text: the headers of the C++ standard library, found at build or at run time.
// SPDX-License-Identifier: Apache-2.0
#include "train/data/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <sstream>
#include <system_error>

#include "pride/digest.h"
#include "pride/error.h"
#include "program/files.h"
#include "train/data/shard.h"

namespace pride::train {
namespace {

using std::filesystem::path;
constexpr auto npos = std::string_view::npos;

struct TextFile {
  std::string name;   // path relative to the folder, with "/" between its parts
  std::string bytes;  // never empty
};

struct TextFolder {
  std::vector<TextFile> files;  // in order of name, as bytes
  std::size_t n_skipped = 0;    // files with a NUL byte
};

// Every regular file below `folder`; empty files are left out.
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

std::uint64_t path_hash(const std::string& name) {
  return hash_bytes(std::as_bytes(std::span(name)));
}

// One file in ten by hash, but never none or all: then the file with the extreme hash changes
// sides.
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

// Sets train, valid, hash and n_files. With one file the split is by bytes, 90 to 10.
// REQUIRES: two bytes or more in all.
TextCorpus split_text(const std::vector<TextFile>& files) {
  TextCorpus corpus;
  corpus.n_files = files.size();
  if (files.size() == 1) {
    const std::string& bytes = files[0].bytes;
    // in this order the product cannot overflow, and both sides get at least a byte
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
  Digest digest;
  for (const auto* part : {&corpus.train, &corpus.valid}) {
    digest.bytes(std::as_bytes(std::span(*part)));
  }
  corpus.hash = digest.value();
  return corpus;
}

TextCorpus load_file(const path& file) {
  std::string bytes = read_file(file);
  if (bytes.size() < 2) {
    throw DataError(concat(file.string(), ": ", bytes.size(),
                           " bytes of text, at least 2 are needed to train and validate"));
  }
  if (has_shard_header(bytes)) {
    throw DataError(concat(
        file.string(), ": tokens in llm.c's layout, not text; use --vocab for tokens of 16 bits"));
  }
  if (const auto nul = bytes.find('\0'); nul != npos) {
    throw DataError(concat(file.string(), ": no text: byte ", nul,
                           " is NUL (a binary or compressed file, or one in UTF-16?)"));
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

// --- The default text. ---------------------------------------------------------------------------

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n\f\v") == npos; }

// Up to and including the next line end.
std::size_t line_end(std::string_view text, std::size_t at) {
  const std::size_t end = text.find('\n', at);
  return end == npos ? text.size() : end + 1;
}

// The end of the comment block at `at`, with the rest of its last line; `at` if there is no
// comment, or if code follows on its last line.
std::size_t comment_end(std::string_view text, std::size_t at) {
  const std::size_t first = text.find_first_not_of(" \t", at);
  if (first == npos) return at;
  if (text.substr(first, 2) == "/*") {
    const std::size_t close = text.find("*/", first + 2);
    if (close == npos) return at;
    const std::size_t end = line_end(text, close);
    return is_blank(text.substr(close + 2, end - close - 2)) ? end : at;
  }
  std::size_t end = at;
  while (end < text.size()) {
    const std::size_t begin = text.find_first_not_of(" \t", end);
    if (begin == npos || text.substr(begin, 2) != "//") break;
    end = line_end(text, begin);
  }
  return end;
}

bool speaks_of_licence(std::string_view comment) {
  constexpr std::array<std::string_view, 6> words = {"copyright", "license",  "licence",
                                                     "gpl ",      "warranty", "free software"};
  std::string lower(comment);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::ranges::any_of(words,
                             [&](std::string_view word) { return lower.find(word) != npos; });
}

// Every folder named at build time, then those of the usual places, newest version first.
std::vector<path> candidates() {
  std::vector<path> folders;
  std::istringstream built(PRIDE_CXX_INCLUDE_DIRS);
  for (std::string folder; std::getline(built, folder, ':');) folders.emplace_back(folder);
  std::vector<path> versions;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/include/c++", error)) {
    versions.push_back(entry.path());
  }
  // by number, so that 12 comes before 9; "v1" of libc++ counts as 0
  std::sort(versions.begin(), versions.end(), [](const path& a, const path& b) {
    const auto version = [](const path& p) { return std::atof(p.filename().c_str()); };
    return version(a) != version(b) ? version(a) > version(b) : a < b;
  });
  folders.insert(folders.end(), versions.begin(), versions.end());
  return folders;
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

bool validates(const std::string& name) { return path_hash(name) % 10 == 0; }

TextCorpus load_text(const path& file_or_folder) {
  std::error_code error;
  const auto status = std::filesystem::status(file_or_folder, error);
  if (std::filesystem::is_directory(status)) return load_folder(file_or_folder);
  if (std::filesystem::is_regular_file(status)) return load_file(file_or_folder);
  throw DataError(concat("cannot read text from ", file_or_folder.string(), ": ",
                         error ? error.message() : "neither a file nor a folder"));
}

std::string strip_licence(std::string_view source) {
  std::string kept;
  std::size_t at = 0;
  while (at < source.size()) {
    const std::size_t line = line_end(source, at);
    if (const std::size_t end = comment_end(source, at); end > at) {
      const std::string_view comment = source.substr(at, end - at);
      if (!speaks_of_licence(comment)) kept += comment;
      at = end;
    } else if (is_blank(source.substr(at, line - at))) {
      kept += source.substr(at, line - at);
      at = line;
    } else {
      break;
    }
  }
  return kept.append(source.substr(at));
}

std::optional<path> find_default_text() {
  std::error_code ignored;
  for (const path& folder : candidates()) {
    // target-specific folders of the library do not hold <vector>; those of C do not either
    if (std::filesystem::is_regular_file(folder / "vector", ignored)) return folder;
  }
  return std::nullopt;
}

TextCorpus load_default_text() {
  const std::optional<path> folder = find_default_text();
  if (!folder) {
    std::string looked;
    for (const path& candidate : candidates()) looked += concat(" ", candidate.string());
    throw DataError(concat("no default text: the C++ standard library's headers are in none of",
                           looked, " /usr/include/c++/*; give --data FILE_OR_FOLDER"));
  }
  TextFolder found = read_text_folder(*folder);
  for (TextFile& file : found.files) file.bytes = strip_licence(file.bytes);
  std::erase_if(found.files, [](const TextFile& file) { return file.bytes.empty(); });
  TextCorpus corpus = split_text(found.files);
  corpus.n_skipped = found.n_skipped;
  corpus.source = concat("C++ standard library headers in ", folder->string(), " (",
                         found.files.size(), " files, licence headers stripped, split by file)");
  return corpus;
}

}  // namespace pride::train
