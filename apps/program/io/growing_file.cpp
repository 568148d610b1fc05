// SPDX-License-Identifier: Apache-2.0
#include "program/io/growing_file.h"

#include <cerrno>
#include <system_error>

namespace pride::inline program {
namespace fs = std::filesystem;

void GrowingFile::open(const fs::path& file) {
  std::error_code none;
  file_ = file;
  out_ = std::ofstream(file, std::ios::binary | std::ios::app);
  size_ = fs::exists(file) ? fs::file_size(file, none) : 0;
}

void GrowingFile::add(std::string_view record) {
  errno = 0;
  out_ << record << std::flush;
  if (out_) {
    size_ += record.size();
    return;
  }
  const int problem = errno;
  out_ = std::ofstream();  // with what it has buffered
  std::error_code none;
  fs::resize_file(file_, size_, none);  // removes a part of the record
  out_.open(file_, std::ios::binary | std::ios::app);
  throw NotRecorded(concat(file_.string(), ": cannot write",
                           problem == 0 ? "" : ": " + std::generic_category().message(problem)));
}

}  // namespace pride::inline program
