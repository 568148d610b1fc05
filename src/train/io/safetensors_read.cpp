// Reader of safetensors files: header first, then each tensor's data, converted to float.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <span>

#include "pride/error.h"
#include "train/io/safetensors.h"
#include "train/io/safetensors_header.h"

namespace pride::train {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// Converts values.size() items of type T at `bytes`.
template <typename T, typename Convert>
void convert(std::span<const char> bytes, std::span<float> values, Convert to_float) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    T item;
    std::memcpy(&item, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = to_float(item);
  }
}

void convert(const std::string& dtype, std::span<const char> bytes, std::span<float> values) {
  if (dtype == "F16") convert<std::uint16_t>(bytes, values, half_to_float);
  if (dtype == "BF16") convert<std::uint16_t>(bytes, values, bfloat16_to_float);
  if (dtype == "F64") {
    convert<double>(bytes, values, [](double x) { return static_cast<float>(x); });
  }
}

// Reads the data of one tensor, at which `in` stands. F32 needs no second buffer.
bool read_values(std::ifstream& in, const std::string& dtype, std::span<float> values) {
  if (dtype == "F32") {
    return !!in.read(reinterpret_cast<char*>(values.data()),
                     static_cast<std::streamsize>(values.size_bytes()));
  }
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  const std::size_t item = safetensors_item_size(dtype);
  std::vector<char> bytes(std::min(values.size(), kChunk) * item);
  for (std::size_t at = 0; at < values.size(); at += kChunk) {
    const auto part = values.subspan(at, std::min(kChunk, values.size() - at));
    if (!in.read(bytes.data(), static_cast<std::streamsize>(part.size() * item))) return false;
    convert(dtype, bytes, part);
  }
  return true;
}

}  // namespace

std::map<std::string, SafeTensor> read_safetensors(const std::filesystem::path& file) {
  std::ifstream in;
  const SafetensorsHeader header = read_safetensors_header(file, in);
  std::map<std::string, SafeTensor> tensors;
  for (const SafetensorsEntry& e : header.entries) {
    SafeTensor tensor{.dtype = e.dtype, .shape = e.shape, .values = std::vector<float>(e.n)};
    if (!read_values(in, e.dtype, tensor.values)) {
      throw DataError(concat(file.string(), ": tensor \"", e.name, "\": its data cannot be read"));
    }
    tensors.emplace(e.name, std::move(tensor));
  }
  return tensors;
}

std::map<std::string, std::string> read_safetensors_metadata(const std::filesystem::path& file) {
  std::ifstream in;
  return read_safetensors_header(file, in).metadata;
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31;
  const std::uint32_t exponent = (bits >> 10) & 31u;
  const std::uint32_t fraction = bits & 1023u;
  // all ones: infinity or NaN, the payload moved up
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | fraction << 13);
  // zero or subnormal: fraction * 2^-24 is exact in float
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace pride::train
