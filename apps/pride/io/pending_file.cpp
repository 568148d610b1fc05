// SPDX-License-Identifier: Apache-2.0
#include "io/pending_file.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "pride/error.h"

namespace pride::app {

PendingFile::PendingFile(const std::filesystem::path& target)
    : target_(target), temporary_(concat(target.string(), ".tmp.", getpid())) {
  std::error_code none;  // the rename would replace a device, and fail late on a folder
  const auto status = std::filesystem::status(target, none);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    const bool folder = std::filesystem::is_directory(status);
    throw DataError(concat("cannot create ", target.string(), ": it is ",
                           folder ? "a folder" : "no regular file"));
  }
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) fail("create");
}

PendingFile::~PendingFile() {
  if (file_ != nullptr) std::fclose(file_);
  std::error_code ignored;
  if (!committed_) std::filesystem::remove(temporary_, ignored);
}

void PendingFile::write(const void* bytes, std::size_t size) {
  if (size != 0 && std::fwrite(bytes, 1, size, file_) != size) fail("write");
}

void PendingFile::rewrite_start(const void* bytes, std::size_t size) {
  if (std::fseek(file_, 0, SEEK_SET) != 0) fail("write");
  write(bytes, size);
  if (std::fseek(file_, 0, SEEK_END) != 0) fail("write");
}

void PendingFile::finish() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) fail("write");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) fail("close");
}

// on disk before the rename, so that a crash leaves the old file or the new one
void PendingFile::commit() {
  if (file_ != nullptr) finish();
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("rename");
  committed_ = true;
}

void PendingFile::fail(const char* what) const {
  const auto why = std::generic_category().message(errno);
  throw DataError(concat("cannot ", what, " ", target_.string(), ": ", why));
}

}  // namespace pride::app
