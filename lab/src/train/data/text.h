// Text as bytes, split into training and validation: a file, a folder, or the default text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pride::train {

struct TextCorpus {
  std::vector<std::uint8_t> train, valid;
  std::string source;         // source and split, for logs
  std::uint64_t hash = 0;     // XXH3-64 of train followed by valid
  std::size_t n_files = 0;    // text files read
  std::size_t n_skipped = 0;  // regular files skipped because of a NUL byte
};

// A file: the first 90 % of its bytes train, the rest validates. A folder: every regular file of
// text below it, in order of relative path; about one file in ten validates, chosen by a hash of
// its relative path, at least one on each side (a single file is split by bytes as above). No byte
// is added or changed. Symbolic links to folders are not followed. The same files give the same
// corpus on every machine. lab/docs/data.md has the rules in full.
// Throws DataError: nothing there, no text in it, or fewer than 2 bytes.
TextCorpus load_text(const std::filesystem::path& file_or_folder);

// The compiler's C++ standard library headers, without licence headers; some 10 MB. Throws
// DataError, naming the searched folders, if there are none.
TextCorpus load_default_text();

// The folder that load_default_text() would read.
std::optional<std::filesystem::path> find_default_text();

// `source` without its leading comment blocks about copyright, licence, warranty or free software.
// A block is one /* */ comment or // lines without a blank line between them; the first line that
// is neither comment nor blank ends the search.
std::string strip_licence(std::string_view source);

// Reads a file or a pipe to its end. Throws DataError if there are more than `most` bytes.
std::string read_file(const std::filesystem::path& file, std::size_t most = SIZE_MAX);

// True if a file of that relative path validates: XXH3-64 of the path is a multiple of 10.
bool validates(const std::string& name);

}  // namespace pride::train
