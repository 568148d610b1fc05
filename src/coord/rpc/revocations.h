// Serials of certificates that are no longer good: a plain file, a line each, read again when it
// changes.
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

// "SERIAL anything else" a line, the serial in hexadecimal; '#' begins a comment. Several threads
// may ask.
class Revocations {
 public:
  // A file that is not there has none. Throws DataError, naming file and line, if one is no such
  // line; a file that becomes so later takes nothing back, and is a warning.
  explicit Revocations(std::filesystem::path file, OnWarning on_warning = {});

  bool contains(const std::string& serial);

 private:
  using Stamp = std::pair<std::filesystem::file_time_type, std::uintmax_t>;

  std::string read_if_changed();

  const std::filesystem::path file_;
  const OnWarning on_warning_;
  std::mutex mutex_;  // of the rest
  Stamp stamp_{};
  std::set<std::string> serials_;
};

}  // namespace pride::coord
