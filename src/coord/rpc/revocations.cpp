// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/revocations.h"

#include <fstream>
#include <sstream>
#include <system_error>

namespace pride::coord {

Revocations::Revocations(std::filesystem::path file) : file_(std::move(file)) {}

bool Revocations::contains(const std::string& serial) {
  const std::lock_guard lock(mutex_);
  read_if_changed();
  return serials_.contains(serial);
}

// A file that has gone, or cannot be read for a moment, revokes what it revoked before.
void Revocations::read_if_changed() {
  std::error_code gone;
  const auto time = std::filesystem::last_write_time(file_, gone);
  if (gone) return;
  const Stamp stamp{time, std::filesystem::file_size(file_, gone)};
  if (gone || stamp == stamp_) return;
  std::ifstream in(file_);
  if (!in) return;
  std::set<std::string> serials;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string serial;
    if (words >> serial && !serial.starts_with('#')) serials.insert(serial);
  }
  serials_ = std::move(serials);
  stamp_ = stamp;
}

}  // namespace pride::coord
