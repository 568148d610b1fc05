// Counter-based random bits: no state, so every rank and every thread draws the same stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace pride {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014) over key + (counter + 1) * golden ratio.
// Cheap and good enough for ties and zeros; not for sampling.
constexpr std::uint64_t mix64(std::uint64_t key, std::uint64_t counter) {
  std::uint64_t z = key + (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Philox4x32-10 (Salmon et al. 2011): four random words for a 128-bit counter and a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// A stream of Philox words keyed by (seed, purpose, a, b): e.g. (seed, kAugment, step, sample).
// Two streams with different keys are independent; a stream is repeatable from its key alone.
class PhiloxStream {
 public:
  PhiloxStream(std::uint64_t seed, std::uint32_t purpose, std::uint64_t a, std::uint32_t b = 0)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        counter_{0, static_cast<std::uint32_t>(a),
                 static_cast<std::uint32_t>(a >> 32) ^ (purpose << 16), b} {}

  std::uint32_t next_u32() {
    if (used_ == 4) refill();
    return block_[used_++];
  }
  std::uint64_t next_u64() {
    const std::uint64_t low = next_u32();
    return low | (std::uint64_t{next_u32()} << 32);
  }
  // Uniform in [0, 1), 24 bits.
  float next_unit() { return static_cast<float>(next_u32() >> 8) * 0x1p-24f; }
  // Uniform in [0, n), n >= 1, without bias (Lemire 2019).
  std::uint32_t next_below(std::uint32_t n) {
    std::uint64_t product = std::uint64_t{next_u32()} * n;
    const std::uint32_t floor = (0u - n) % n;
    while (static_cast<std::uint32_t>(product) < floor) product = std::uint64_t{next_u32()} * n;
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  void refill() {
    block_ = philox4x32(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }

  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace pride
