// Serials of revoked certificates: a plain file, one per line, read again when it changes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace pride::coord {

using OnWarning = std::function<void(const std::string&)>;

// A line is "SERIAL anything else", the serial in hexadecimal; '#' begins a comment. Several
// threads may call.
class Revocations {
 public:
  // A missing file has none. Throws DataError, naming file and line, on an invalid line. If the
  // file becomes invalid later, revocations stay and there is a warning.
  explicit Revocations(std::filesystem::path file, OnWarning on_warning = {});

  bool contains(const std::string& serial);

 private:
  using Stamp = std::pair<std::filesystem::file_time_type, std::uintmax_t>;

  std::string read_if_changed();

  const std::filesystem::path file_;
  const OnWarning on_warning_;
  std::mutex mutex_;  // guards the members below
  Stamp stamp_{};
  std::set<std::string> serials_;
};

}  // namespace pride::coord
