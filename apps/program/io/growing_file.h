// A file that grows by whole records, as the log of a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "pride/error.h"

namespace pride::inline program {

// A record could not be written. A run goes on without it.
class NotRecorded : public DataError {
 public:
  using DataError::DataError;
};

class GrowingFile {
 public:
  // Appends to the file, which is made if it is missing.
  void open(const std::filesystem::path& file);
  // On disk's cache when it returns. Throws NotRecorded if it cannot be written, as on a full disk;
  // nothing of it is then in the file, and a later record may be.
  void add(std::string_view record);

 private:
  std::filesystem::path file_;
  std::ofstream out_;
  std::uintmax_t size_ = 0;
};

}  // namespace pride::inline program
