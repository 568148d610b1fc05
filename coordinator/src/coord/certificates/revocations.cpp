// SPDX-License-Identifier: Apache-2.0
#include "coord/certificates/revocations.h"

#include <fstream>
#include <sstream>
#include <system_error>

#include "pride/error.h"

namespace pride::coord {

Revocations::Revocations(std::filesystem::path file, OnWarning on_warning)
    : file_(std::move(file)), on_warning_(std::move(on_warning)) {
  if (const std::string bad = read_if_changed(); !bad.empty()) throw DataError(bad);
}

bool Revocations::contains(const std::string& serial) {
  const std::lock_guard lock(mutex_);
  const std::string bad = read_if_changed();
  if (!bad.empty() && on_warning_) on_warning_(bad + "; revoked certificates stay revoked");
  return serials_.contains(serial);
}

// If the file is missing, unreadable or damaged, earlier revocations stay. Returns the fault of the
// first damaged line.
std::string Revocations::read_if_changed() {
  std::error_code gone;
  const auto time = std::filesystem::last_write_time(file_, gone);
  if (gone) return {};
  const Stamp stamp{time, std::filesystem::file_size(file_, gone)};
  if (gone || stamp == stamp_) return {};
  std::ifstream in(file_);
  if (!in) return {};
  std::set<std::string> serials;
  int number = 0, bad = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line);
    std::string serial;
    if (!(words >> serial) || serial.starts_with('#')) continue;
    const bool good = serial.find_first_not_of("0123456789abcdefABCDEF") == serial.npos;
    if (good) serials.insert(serial);
    if (!good && bad == 0) bad = number;
  }
  if (bad > 0) serials.merge(serials_);
  serials_ = std::move(serials);
  stamp_ = stamp;
  if (bad == 0) return {};
  return concat(file_.string(), ":", bad, ": does not begin with a serial");
}

}  // namespace pride::coord
