// SPDX-License-Identifier: Apache-2.0
#include "program/io/pending_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "pride/error.h"

namespace pride::inline program {
namespace {

namespace fs = std::filesystem;

// The file that the rename replaces: the file itself, not a link to it, a device or a folder.
fs::path file_behind(const fs::path& target) {
  std::error_code none;
  const auto refuse = [&](const char* what) {
    throw DataError(concat("cannot create ", target.string(), ": it is ", what));
  };
  const fs::file_status status = fs::status(target, none);
  if (fs::is_directory(status)) refuse("a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) refuse("not a regular file");
  if (!fs::is_symlink(fs::symlink_status(target, none))) return target;
  // /dev/stdout and similar paths are links to a process's open files
  const fs::path folder = fs::weakly_canonical(fs::absolute(target).parent_path(), none);
  const std::string place = folder.string() + "/";
  if (place.starts_with("/dev/") || place.starts_with("/proc/")) refuse("not a regular file");
  return fs::weakly_canonical(target, none);
}

}  // namespace

void sync_folder(const fs::path& folder) noexcept {
  const int descriptor =
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

PendingFile::PendingFile(const fs::path& target)
    : target_(file_behind(target)), temporary_(concat(target_.string(), ".tmp.", getpid())) {
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
  sync_folder(target_.parent_path());
}

void PendingFile::fail(const char* what) const {
  const auto why = std::generic_category().message(errno);
  throw DataError(concat("cannot ", what, " ", target_.string(), ": ", why));
}

}  // namespace pride::inline program
