// Calls of a coordinator with any bytes as messages, beside an honest worker, whose rounds must
// close all the same.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "any_calls.h"

namespace {

namespace fs = std::filesystem;

// In memory where the system has such a folder: every round is an fsync.
fs::path new_folder() {
  const fs::path memory = "/dev/shm";
  std::string name =
      ((fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "pride-fuzz-XXXXXX")
          .string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

}  // namespace

// The input: for each call a byte of its kind, two of its length, its message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fs::path folder = new_folder();
  {
    pride::coord::test::AnyCalls calls(folder / "journal");
    std::size_t at = 0;
    while (at + 3 <= size) {
      const std::uint8_t kind = data[at];
      const std::size_t n =
          std::min<std::size_t>(data[at + 1] + 256U * data[at + 2], size - at - 3);
      calls.call(kind, std::string(reinterpret_cast<const char*>(data + at + 3), n));
      at += 3 + n;
    }
    calls.check();  // throws what ends the fuzzer
  }
  fs::remove_all(folder);
  return 0;
}
