// SPDX-License-Identifier: Apache-2.0
#include "program/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "pride/digest.h"
#include "pride/error.h"

namespace pride::inline program {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& why) {
  throw DataError(concat("cannot read ", file.string(), ": ", why));
}

std::string system_text() { return std::generic_category().message(errno); }

std::string why_not_regular(mode_t mode) {
  if (S_ISREG(mode)) return "";
  return S_ISDIR(mode) ? "it is a folder" : "it is not a regular file";
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& file) {
  // O_NONBLOCK: opening a pipe without a writer would wait for ever
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(file, system_text());
  struct stat facts {};
  void* data = nullptr;
  std::string why;
  if (fstat(descriptor, &facts) != 0) {
    why = system_text();
  } else if (why = why_not_regular(facts.st_mode); why.empty() && facts.st_size > 0) {
    data = mmap(nullptr, static_cast<std::size_t>(facts.st_size), PROT_READ, MAP_SHARED, descriptor,
                0);
    if (data == MAP_FAILED) why = system_text();
  }
  close(descriptor);
  if (!why.empty()) fail(file, why);
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<std::size_t>(facts.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

void require_regular_file(const std::filesystem::path& file) {
  struct stat facts {};
  if (stat(file.c_str(), &facts) != 0) fail(file, system_text());
  if (const std::string why = why_not_regular(facts.st_mode); !why.empty()) fail(file, why);
}

std::uint64_t file_hash(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return hash_bytes(std::as_bytes(std::span(mapped.text())));
}

}  // namespace pride::inline program
