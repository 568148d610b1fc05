// The default text: the headers of the C++ standard library, found at build or at run time.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <system_error>

#include "pride/error.h"
#include "train/data/text.h"

namespace pride::train {
namespace {

using std::filesystem::path;
constexpr auto npos = std::string_view::npos;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n\f\v") == npos; }

// Up to and including the next line end.
std::size_t line_end(std::string_view text, std::size_t at) {
  const std::size_t end = text.find('\n', at);
  return end == npos ? text.size() : end + 1;
}

// Where the comment block that begins at `at` ends, the rest of its last line included; `at` if
// there is no comment, or if code follows on the line where it closes.
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
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(words.begin(), words.end(),
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
