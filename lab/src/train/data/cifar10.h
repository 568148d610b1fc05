// CIFAR-10 from its official binary files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace pride::train {

struct ImageSet {
  int channels = 0, height = 0, width = 0, classes = 0;
  std::vector<std::uint8_t> pixels;  // (n, channels, height, width)
  std::vector<std::uint8_t> labels;  // (n), each below `classes`

  std::size_t size() const noexcept { return labels.size(); }
};

struct Cifar10 {
  ImageSet train;  // data_batch_1 to data_batch_5, in that order
  ImageSet test;   // test_batch
};

// Reads data_batch_{1..5}.bin and test_batch.bin, plain or with ".gz" added (plain wins), from
// `folder`, `folder`/cifar-10-batches-bin or `folder`/cifar10, whichever holds one of them first.
// The official files hold 10,000 records each; any positive number of whole records is accepted.
// Throws DataError, naming the file: missing, not a whole number of records of 3,073 bytes,
// truncated or corrupt gzip, a label above 9 (and its record).
Cifar10 load_cifar10(const std::filesystem::path& folder);

}  // namespace pride::train
