// Digest on top of xxHash, compiled into this file alone.
// SPDX-License-Identifier: Apache-2.0
#include "pride/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

namespace pride {

struct Digest::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { XXH3_64bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Digest::Digest() : state_(std::make_unique<State>()) {}
Digest::~Digest() = default;

Digest& Digest::number(std::uint64_t v) {
  std::array<std::byte, 8> raw;
  for (std::size_t i = 0; i < 8; ++i) raw[i] = static_cast<std::byte>(v >> (8 * i));
  return bytes(raw);
}

Digest& Digest::text(std::string_view v) {
  number(v.size());
  return bytes(std::as_bytes(std::span(v)));
}

Digest& Digest::bytes(std::span<const std::byte> v) {
  if (!v.empty()) XXH3_64bits_update(state_->xxh, v.data(), v.size());
  return *this;
}

std::uint64_t Digest::value() const { return XXH3_64bits_digest(state_->xxh); }

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace pride
