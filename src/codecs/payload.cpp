// Offsets of the parts of each kind of frame.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/payload.h"

#include <cassert>

namespace pride {
namespace {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }

}  // namespace

std::span<std::uint64_t> words_at(std::span<std::byte> bytes, std::size_t offset, std::size_t n) {
  assert(offset % 8 == 0 && offset + 8 * n <= bytes.size());
  return {reinterpret_cast<std::uint64_t*>(bytes.data() + offset), n};
}

std::span<const std::uint64_t> words_at(std::span<const std::byte> bytes, std::size_t offset,
                                        std::size_t n) {
  assert(offset % 8 == 0 && offset + 8 * n <= bytes.size());
  return {reinterpret_cast<const std::uint64_t*>(bytes.data() + offset), n};
}

SignFrame::SignFrame(const Shard& shard)
    : absent_words(words_for(shard.pieces.size())),
      sign_words(shard.n_words()),
      absent_at(kHeaderBytes),
      signs_at(absent_at + 8 * absent_words),
      bytes(signs_at + 8 * sign_words) {}

VoteFrame::VoteFrame(const Shard& shard, bool ternary)
    : nobody_words(words_for(shard.pieces.size())),
      sign_words(shard.n_words()),
      nobody_at(kHeaderBytes),
      positive_at(nobody_at + 8 * nobody_words),
      nonzero_at(positive_at + 8 * sign_words),
      bytes(nonzero_at + (ternary ? 8 * sign_words : 0)) {}

DenseFrame::DenseFrame(const Shard& shard, std::size_t width)
    : absent_words(words_for(shard.pieces.size())),
      absent_at(kHeaderBytes),
      bytes(absent_at + 8 * absent_words),
      float_bytes(width * shard.size()) {}

}  // namespace pride
