// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_cache.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <span>
#include <sstream>

#include "pride/digest.h"
#include "pride/error.h"

namespace pride::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMagic = 0x3162756365646972U;  // "ridecub1"

struct FileHead {
  std::uint64_t magic, key, size, checksum;
};

FileHead head_of(std::uint64_t key, const std::string& image) {
  const auto bytes = std::as_bytes(std::span(image));
  return {kMagic, key, image.size(), hash_bytes(bytes, key)};
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : "";
}

std::string unwritable(const fs::path& path, const std::string& reason) {
  return concat("cannot write ", path.string(), ": ", reason);
}

// A name that only this process uses, in the folder of the final file.
fs::path pending_file(const fs::path& file) {
  static std::atomic<unsigned> count{0};
  return concat(file.string(), ".", ::getpid(), ".", ++count);
}

}  // namespace

fs::path cache_folder() {
  if (const std::string named = value_of("PRIDE_CACHE"); !named.empty()) return named;
  // the specification of XDG_CACHE_HOME says to ignore a relative path
  const fs::path shared = value_of("XDG_CACHE_HOME");
  if (shared.is_absolute()) return shared / "pride";
  const fs::path home = value_of("HOME");
  return home.empty() ? home : home / ".cache" / "pride";
}

fs::path cache_file(const fs::path& folder, std::uint64_t key) {
  std::ostringstream name;
  name << "kernels-" << std::hex << std::setw(16) << std::setfill('0') << key;
  return folder / name.str();
}

std::optional<std::string> read_cached(const fs::path& folder, std::uint64_t key) {
  const fs::path path = cache_file(folder, key);
  std::error_code error;
  if (folder.empty() || !fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string image((std::istreambuf_iterator<char>(file)), {});
  FileHead head{};
  if (image.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, image.data(), sizeof head);
  image.erase(0, sizeof head);
  const FileHead right = head_of(key, image);
  if (std::memcmp(&head, &right, sizeof head) != 0) return std::nullopt;
  return image;
}

std::string write_cached(const fs::path& folder, std::uint64_t key, const std::string& image) {
  if (folder.empty())
    return "no cache folder: neither PRIDE_CACHE nor XDG_CACHE_HOME nor HOME is set";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return unwritable(folder, error.message());
  const fs::path file = cache_file(folder, key), pending = pending_file(file);
  const FileHead head = head_of(key, image);
  errno = 0;
  std::ofstream out(pending, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&head), sizeof head);
  out.write(image.data(), static_cast<std::streamsize>(image.size()));
  out.close();
  const std::string reason = out ? "" : std::strerror(errno);
  if (out) fs::rename(pending, file, error);
  if (out && !error) return "";
  std::error_code ignored;
  fs::remove(pending, ignored);
  return unwritable(file, error ? error.message() : reason);
}

}  // namespace pride::cuda
