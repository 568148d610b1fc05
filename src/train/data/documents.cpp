// SPDX-License-Identifier: Apache-2.0
#include "train/data/documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "pride/error.h"
#include "train/io/ending.h"
#include "train/io/mapped_file.h"

namespace pride::train {
namespace {

using std::filesystem::path;

DocumentFile file_of(const path& file, std::string name, bool in_folder) {
  return {file, std::move(name), ending_of(file) == ".jsonl", in_folder};
}

void list_folder(const path& folder, std::vector<DocumentFile>& files) {
  const auto first = static_cast<std::ptrdiff_t>(files.size());
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    std::error_code gone;  // a dangling link is no regular file
    if (!at->is_regular_file(gone)) continue;
    files.push_back(file_of(at->path(), at->path().lexically_relative(folder).generic_string(),
                            /*in_folder=*/true));
  }
  if (error) throw DataError(concat("cannot list ", folder.string(), ": ", error.message()));
  std::sort(files.begin() + first, files.end(),
            [](const DocumentFile& a, const DocumentFile& b) { return a.name < b.name; });
}

void read_lines(const DocumentFile& file, std::string_view text, const std::string& field,
                const std::function<void(const Document&)>& take) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto found = json.is_object() ? json.find(field) : json.end();
    if (found == json.end() || !found->is_string()) {
      throw DataError(concat(file.path.string(), ":", number, ": ",
                             json.is_object() ? concat("no string under \"", field, "\"")
                                              : std::string("not a JSON object")));
    }
    const auto& words = found->get_ref<const std::string&>();
    if (!words.empty()) take({concat(file.name, ":", number), words});
  }
}

}  // namespace

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

void read_documents(const DocumentFile& file, const std::string& field,
                    const std::function<void(const Document&)>& take) {
  const MappedFile mapped(file.path);
  const std::string_view text = mapped.text();
  if (file.lines) return read_lines(file, text, field, take);
  const std::size_t nul = text.find('\0');
  if (nul != text.npos && !file.skip_binary) {
    throw DataError(concat(file.path.string(), ": no text: byte ", nul,
                           " is NUL (a binary file, or one in UTF-16?)"));
  }
  if (!text.empty() && nul == text.npos) take({file.name, text});
}

}  // namespace pride::train
