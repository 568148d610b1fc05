// Grids of the kernel tests: sizes, offsets, awkward floats, and arrays between guards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "pride/random_bits.h"

namespace pride::grid {

inline constexpr std::size_t kSizes[] = {0,    1,    2,    7,    15,   16,   17,
                                         31,   63,   64,   65,   127,  128,  129,
                                         1000, 1023, 1024, 1025, 4096, 4097, 13000};
inline constexpr std::size_t kOffsets[] = {0, 1, 3};  // floats, from a 64-byte boundary

// An array at `offset` elements from a 64-byte boundary, between guards. Every second guard is all
// ones, for floats a NaN: a stray read shows in results. The others are an ordinary value, because
// a kernel that updates a NaN in place does not change it.
template <typename T>
class Guarded {
 public:
  explicit Guarded(const std::vector<T>& values, std::size_t offset = 0)
      : n_(values.size()), storage_(n_ + 4 * kGuard) {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      std::memset(static_cast<void*>(&storage_[i]), guard_byte(i), sizeof(T));
    }
    const auto at = reinterpret_cast<std::uintptr_t>(storage_.data() + kGuard);
    start_ = kGuard + (64 - at % 64) % 64 / sizeof(T) + offset;
    std::copy(values.begin(), values.end(), storage_.begin() + static_cast<std::ptrdiff_t>(start_));
  }
  explicit Guarded(std::size_t n, std::size_t offset = 0) : Guarded(filled(n), offset) {}

  std::span<T> span() { return {storage_.data() + start_, n_}; }
  std::vector<T> values() { return {span().begin(), span().end()}; }

  // True if every byte outside the span still holds its guard.
  bool intact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      const bool inside = i >= start_ && i < start_ + n_;
      const auto* bytes = reinterpret_cast<const unsigned char*>(&storage_[i]);
      const auto holds = [i](unsigned char byte) { return byte == guard_byte(i); };
      if (!inside && !std::all_of(bytes, bytes + sizeof(T), holds)) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 256 / sizeof(T);
  static constexpr unsigned char guard_byte(std::size_t i) { return i % 2 == 0 ? 0xFF : 0x3F; }

  // Outputs start as garbage: a word that is never written is detected.
  static std::vector<T> filled(std::size_t n) {
    std::vector<T> values(n);
    if (n > 0) std::memset(static_cast<void*>(values.data()), 0xA5, n * sizeof(T));
    return values;
  }

  std::size_t n_;
  std::vector<T> storage_;
  std::size_t start_ = 0;
};

// Finite floats over many magnitudes with both zeros, denormals and huge values among them.
inline std::vector<float> awkward_floats(std::size_t n, std::uint64_t seed) {
  constexpr float kSpecial[] = {0.0f,    -0.0f,       1e-45f,    -1e-45f, 1e-39f,
                                -3e-39f, 1.1755e-38f, 1e37f,     -1e37f,  1.0f,
                                -1.0f,   0x1p-100f,   0x1p-101f, 1e-8f,   16777217.0f};
  PhiloxStream random(seed, 0, n);
  std::vector<float> values(n);
  for (float& value : values) {
    const std::uint32_t kind = random.next_below(8);
    const float unit = 2 * random.next_unit() - 1;
    if (kind == 0) {
      value = kSpecial[random.next_below(std::size(kSpecial))];
    } else if (kind == 1) {
      value = std::ldexp(unit, static_cast<int>(random.next_below(200)) - 120);
    } else {
      value = unit;
    }
  }
  return values;
}

// awkward_floats() with NaN and Inf at a few places.
inline std::vector<float> wild_floats(std::size_t n, std::uint64_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> values = awkward_floats(n, seed);
  PhiloxStream random(seed, 1, n);
  for (std::size_t count = n / 40 + (n > 0); count > 0; --count) {
    float& value = values[random.next_below(static_cast<std::uint32_t>(n))];
    const float wild[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, 3.4e38f, -3.4e38f};
    value = wild[random.next_below(5)];
  }
  return values;
}

inline std::vector<std::uint64_t> random_words(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint64_t> words(n);
  for (std::size_t k = 0; k < n; ++k) words[k] = mix64(seed, k);
  return words;
}

inline std::string hex(std::uint64_t value) {
  std::ostringstream text;
  text << "0x" << std::hex << value;
  return text.str();
}

// Equal bit for bit; any NaN equals any NaN (its payload is unspecified).
inline ::testing::AssertionResult same_floats(const std::vector<float>& actual,
                                              const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    const auto got = std::bit_cast<std::uint32_t>(actual[i]);
    const auto want = std::bit_cast<std::uint32_t>(expected[i]);
    if (got == want) continue;
    return ::testing::AssertionFailure()
           << "index " << i << " of " << actual.size() << ": expected " << expected[i] << " ("
           << hex(want) << "), actual " << actual[i] << " (" << hex(got) << ")";
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult same_words(const std::vector<std::uint64_t>& actual,
                                             const std::vector<std::uint64_t>& expected) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t k = 0; k < actual.size(); ++k) {
    if (actual[k] == expected[k]) continue;
    return ::testing::AssertionFailure() << "word " << k << " of " << actual.size() << ": expected "
                                         << hex(expected[k]) << ", actual " << hex(actual[k]);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace pride::grid
