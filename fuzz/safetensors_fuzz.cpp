// A safetensors file: the input is the JSON of its header; length and data are added. The reader
// refuses it by the file's name, or the tensors that it returns have the sizes of their shapes.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuzz_input.h"
#include "pride/error.h"
#include "program/io/safetensors.h"

namespace pride::fuzz {
namespace {

constexpr std::size_t kDataBytes = 64;

const std::filesystem::path& file() {
  // in memory where the system has such a folder
  static const std::filesystem::path path = [] {
    const std::filesystem::path memory = "/dev/shm";
    const auto folder =
        access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
    return folder / concat("pride_fuzz.", getpid(), ".safetensors");
  }();
  return path;
}

// The first byte bends the length of the header and of the data, which 0 leaves true.
void write_file(Input input) {
  const auto bend = input.number<std::uint8_t>();
  const auto json = input.rest();
  const std::uint64_t length = json.size() + (bend & 7) * (bend & 8 ? 1ull << 40 : 1);
  const std::string data((bend & 0xF0) == 0 ? kDataBytes : bend >> 4, 'x');
  std::ofstream out(file(), std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out.write(reinterpret_cast<const char*>(json.data()), static_cast<std::streamsize>(json.size()));
  out << data;
}

void one_input(Input input) {
  write_file(input);
  try {
    for (const auto& [name, tensor] : read_safetensors(file())) {
      std::int64_t n = 1;
      for (const std::int64_t extent : tensor.shape) n = extent == 0 ? 0 : n * extent;
      must(!name.empty(), "a tensor without a name");
      must(static_cast<std::int64_t>(tensor.values.size()) == n, "values do not fit the shape");
    }
    read_safetensors_metadata(file());
  } catch (const DataError& e) {
    must(contains(e.what(), file().string()), "the error does not name the file");
  }
}

}  // namespace
}  // namespace pride::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  std::atexit([] { std::filesystem::remove(pride::fuzz::file()); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pride::fuzz::one_input({data, size});
  return 0;
}
