// The bytes that libFuzzer gives, taken from the front; zeros when they are used up, so that every
// input means something and the empty one means the ordinary case.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

namespace pride::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }

  template <typename T>
  T number() {
    T value{};
    const std::size_t n = std::min(sizeof(T), rest_.size());
    if (n > 0) std::memcpy(&value, rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }

  // 0 up to n - 1.
  std::size_t below(std::size_t n) { return number<std::uint16_t>() % n; }

  void fill(std::span<std::byte> out) {
    const std::size_t n = std::min(out.size(), rest_.size());
    if (n > 0) std::memcpy(out.data(), rest_.data(), n);
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(n), out.end(), std::byte{0});
    rest_ = rest_.subspan(n);
  }

  std::span<const std::byte> rest() const { return std::as_bytes(rest_); }

 private:
  std::span<const std::uint8_t> rest_;
};

// Turns two bits over, from the numbers of the input: of a set of marks, one moves.
inline void turn_two_bits(std::span<std::byte> bytes, std::uint32_t first, std::uint32_t second) {
  if (bytes.empty()) return;
  for (const std::uint32_t number : {first, second}) {
    const std::size_t bit = number % (8 * bytes.size());
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// A property that does not hold: libFuzzer keeps the input of a program that aborts.
inline void must(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace pride::fuzz
