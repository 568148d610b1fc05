// Event files of TensorBoard: scalars by step, in the TFRecord framing. Written by hand, since two
// message types and a checksum need no library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pride::train {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value

class EventFile {
 public:
  // A new file in the folder, which must be there. `step`: of the run that it goes on;
  // TensorBoard then drops what earlier files say of later steps. Throws DataError.
  EventFile(const std::filesystem::path& folder, std::int64_t step);

  // Flushed when it returns: a run that is killed leaves whole records. Throws DataError.
  void write(std::int64_t step, const Scalars& scalars);

 private:
  void record(const std::string& event);

  std::filesystem::path file_;
  std::ofstream out_;
};

// Those of earlier runs in the folder, by their names.
std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder);

// CRC-32C (Castagnoli), not masked.
std::uint32_t crc32c(std::span<const char> bytes) noexcept;

}  // namespace pride::train
