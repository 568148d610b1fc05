// safetensors: named tensors in one file, the usual exchange format for PyTorch weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace pride::inline program {

struct SafeTensor {
  std::string dtype = "F32";        // as in the file: "F32", "F16", "BF16" or "F64"
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::vector<float> values;        // row-major, one float each whatever the dtype
};

// All tensors of a file, by name. F16 and BF16 become float exactly, F64 is rounded to nearest.
// The whole file is checked before anything is returned: header length, JSON (UTF-8, no name
// twice), dtypes, sizes against shapes, and that the tensors cover the data without gap or overlap.
// Throws DataError, naming the file and the tensor.
std::map<std::string, SafeTensor> read_safetensors(const std::filesystem::path& file);

// The same checks; returns only the header's shapes by name, and "__metadata__" (empty if missing).
std::map<std::string, std::vector<std::int64_t>> read_safetensors_shapes(
    const std::filesystem::path& file);
std::map<std::string, std::string> read_safetensors_metadata(const std::filesystem::path& file);

// Writes tensors in order of name, as F32; same input, same bytes. The write is atomic: to
// "<file>.tmp.<pid>", then renamed over `file`. Throws InvalidArgument if a dtype is not "F32", a
// size differs from its shape, or a name is empty, "__metadata__" or not UTF-8; DataError if the
// file cannot be written.
void write_safetensors(const std::filesystem::path& file,
                       const std::map<std::string, SafeTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// IEEE 754 binary16, exactly. Subnormals, infinities and NaN payloads are kept.
float half_to_float(std::uint16_t bits);

// bfloat16: the upper half of a float.
constexpr float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

}  // namespace pride::inline program
