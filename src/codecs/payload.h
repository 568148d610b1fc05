// Payloads: what the bytes behind a frame's header mean. Offsets follow from the shard alone, so
// every receiver knows every size beforehand. Layout and examples: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codecs/frame.h"
#include "pride/bucket.h"

namespace pride {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

// Typed access to a part of a frame. Parts begin at multiples of 8.
std::span<std::uint64_t> words_at(std::span<std::byte> bytes, std::size_t offset, std::size_t n);
std::span<const std::uint64_t> words_at(std::span<const std::byte> bytes, std::size_t offset,
                                        std::size_t n);

// The same for smaller numbers. REQUIRES: offset is a multiple of the number's size.
template <typename T>
std::span<T> values_at(std::span<std::byte> bytes, std::size_t offset, std::size_t n) {
  assert(offset % sizeof(T) == 0 && offset + sizeof(T) * n <= bytes.size());
  return {reinterpret_cast<T*>(bytes.data() + offset), n};
}
template <typename T>
std::span<const T> values_at(std::span<const std::byte> bytes, std::size_t offset, std::size_t n) {
  assert(offset % sizeof(T) == 0 && offset + sizeof(T) * n <= bytes.size());
  return {reinterpret_cast<const T*>(bytes.data() + offset), n};
}

inline bool bit_at(std::span<const std::uint64_t> words, std::size_t i) {
  return (words[i / 64] >> (i % 64)) & 1;
}
inline void set_bit(std::span<std::uint64_t> words, std::size_t i) {
  words[i / 64] |= std::uint64_t{1} << (i % 64);
}

// Frame of signs (up): absent bits of the pieces, sign words.
struct SignFrame {
  explicit SignFrame(const Shard& shard);
  std::size_t absent_words, sign_words;
  std::size_t absent_at, signs_at;  // from the start of the frame
  std::size_t bytes;                // header included
};

// Frame of a vote (down): nobody bits of the pieces (1: no rank had a gradient), words of +, and
// with ternary the words of nonzero.
struct VoteFrame {
  VoteFrame(const Shard& shard, bool ternary);
  std::size_t nobody_words, sign_words;
  std::size_t nobody_at, positive_at, nonzero_at;
  std::size_t bytes;
};

// Frame of floats, up and down: absent (nobody) bits of the pieces; the floats, of 4 bytes or of 2
// (bfloat16), travel as a message of their own, straight from where they lie, and are covered by
// the checksum.
struct DenseFrame {
  explicit DenseFrame(const Shard& shard, std::size_t width = 4);
  std::size_t absent_words, absent_at;
  std::size_t bytes;        // of the first message: header and absent bits
  std::size_t float_bytes;  // of the second
};

}  // namespace pride
