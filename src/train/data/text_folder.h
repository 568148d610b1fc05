// The text files below a folder, and their split into training and validation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/data/text.h"

namespace pride::train {

struct TextFile {
  std::string name;   // path relative to the folder, with "/" between its parts
  std::string bytes;  // never empty
};

struct TextFolder {
  std::vector<TextFile> files;  // in order of name, as bytes
  std::size_t n_skipped = 0;    // files with a NUL byte
};

// Reads a file, or what comes out of a pipe, to its end. Throws DataError if there are more than
// `most` bytes.
std::string read_file(const std::filesystem::path& file, std::size_t most = SIZE_MAX);

// Reads every regular file below `folder`; empty files are left out. Throws DataError if one cannot
// be read.
TextFolder read_text_folder(const std::filesystem::path& folder);

// True if a file of that relative path validates: XXH3-64 of the path is a multiple of 10.
bool validates(const std::string& name);

// Sets train, valid, hash and n_files. With one file the split is by bytes, 90 to 10.
// REQUIRES: two bytes or more in all.
TextCorpus split_text(const std::vector<TextFile>& files);

}  // namespace pride::train
