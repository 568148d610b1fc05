// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/revocations.h"

#include <fstream>
#include <sstream>
#include <system_error>

#include "pride/error.h"

namespace pride::coord {

Revocations::Revocations(std::filesystem::path file) : file_(std::move(file)) {
  const int bad = read_if_changed();
  if (bad == 0) return;
  throw DataError(concat(file_.string(), ":", bad, ": does not begin with a serial"));
}

bool Revocations::contains(const std::string& serial) {
  const std::lock_guard lock(mutex_);
  read_if_changed();
  return serials_.contains(serial);
}

// A file that has gone, cannot be read for a moment or is damaged revokes what it revoked before.
// Returns the number of the first damaged line, 0 without one.
int Revocations::read_if_changed() {
  std::error_code gone;
  const auto time = std::filesystem::last_write_time(file_, gone);
  if (gone) return 0;
  const Stamp stamp{time, std::filesystem::file_size(file_, gone)};
  if (gone || stamp == stamp_) return 0;
  std::ifstream in(file_);
  if (!in) return 0;
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
  return bad;
}

}  // namespace pride::coord
