// SPDX-License-Identifier: Apache-2.0
#include "program/files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "pride/error.h"
#include "program/io/mapped_file.h"
#include "program/io/pending_file.h"

namespace pride::inline program {
namespace fs = std::filesystem;

void write_file(const fs::path& file, std::string_view text) {
  PendingFile pending(file);
  pending.write(text.data(), text.size());
  pending.commit();
}

nlohmann::json parse_json(std::string_view text, const std::string& place) {
  constexpr std::size_t kLongest = 300;     // the parser repeats the word that it read last
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  using Event = nlohmann::json::parse_event_t;
  constexpr int kDeepest = 100;  // the library copies and writes values recursively
  const auto each = [&](int depth, Event event, const nlohmann::json& json) {
    if (depth > kDeepest) throw DataError(concat(place, ": more than ", kDeepest, " levels deep"));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    const bool again = event == Event::key && !keys.back().insert(json).second;
    if (again)
      throw DataError(concat(place, ": ", json.dump().substr(0, kLongest), " appears twice"));
    return true;
  };
  try {
    return nlohmann::json::parse(text, each);
  } catch (const nlohmann::json::exception& e) {
    throw DataError(concat(place, ": not JSON: ", std::string_view(e.what()).substr(0, kLongest)));
  }
}

nlohmann::json read_json(const fs::path& file) {
  const MappedFile mapped(file);
  if (mapped.text().empty()) throw DataError(concat(file.string(), ": it is empty"));
  return parse_json(mapped.text(), file.string());
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    std::error_code gone;  // a dangling link is not a regular file
    if (at->is_regular_file(gone)) files.push_back(at->path());
  }
  if (error) throw DataError(concat("cannot list ", folder.string(), ": ", error.message()));
  return files;
}

std::vector<fs::path> entries_in(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  fs::directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) entries.push_back(at->path());
  if (error) throw DataError(concat("cannot list ", folder.string(), ": ", error.message()));
  std::ranges::sort(entries);
  return entries;
}

}  // namespace pride::inline program
