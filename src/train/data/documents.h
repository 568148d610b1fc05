// Documents: the texts of files, of folders and of the lines of JSON files, one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pride::train {

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
