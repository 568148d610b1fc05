// Digest: a 64-bit hash of a sequence of texts, numbers and bytes (XXH3), the same on all machines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace pride {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  Digest& number(std::uint64_t v);              // 8 bytes, little endian
  Digest& text(std::string_view v);             // its length, then its bytes
  Digest& bytes(std::span<const std::byte> v);  // the bytes alone
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3 (64 bit) of one range.
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);

}  // namespace pride
