// Sparse frames: some of n coordinates, as indices and float32 values. Sizes follow only from n and
// the number of entries. Layout and example: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "codecs/frame.h"

namespace pride {

// Coding of k entries out of n coordinates. Indices are Elias-Fano coded: the low bits of each
// unchanged, the high bits in unary. That takes at most 2 + log2(n/k) bits per entry. If a bitmap
// of n bits is not longer, it replaces both. Each part is padded to 8 bytes.
struct SparseShape {
  // REQUIRES: k <= n.
  SparseShape(std::size_t n, std::size_t k);
  std::size_t n, k;
  bool bitmap = true;
  std::size_t low_bits = 0;  // per entry
  std::size_t low_words = 0, high_words = 0;
};

template <typename Byte>
struct SparseView : SparseShape {
  SparseView(Byte* frame, std::size_t n, std::size_t k) : SparseShape(n, k) {
    Parts<Byte> parts(frame);
    count = parts.words(1);
    low = parts.words(low_words);
    high = parts.words(high_words);
    values = parts.template take<float>(k);
    bytes = parts.end();
  }
  Words<Byte> count, low, high;
  std::span<typename Parts<Byte>::template Like<float>> values;
  std::size_t bytes = 0;
};

// Frames of a whole bucket. Their maximum size is that of all coordinates.
FrameKind sparse_frames();

// Upper bound of the bytes of n_payloads payloads that together hold at most k of n coordinates,
// however these are distributed: k (2 + log2(n/k)) bits of indices, by the log sum inequality, 4k
// bytes of values, and the count and padding of each payload. REQUIRES: k <= n.
std::uint64_t sparse_bytes_bound(std::size_t n, std::size_t k, std::size_t n_payloads);

// Writes the entries whose bits are set, in ascending order, after the header.
// REQUIRES: mask has words for n = values.size() coordinates, and no bit set after them.
void write_sparse(std::span<const std::uint64_t> mask, std::span<const float> values,
                  ByteBuffer& frame);

// sum[i] += value for every entry. Everything is checked before anything is added: the number of
// entries, the size, indices that ascend and are below n, padding that is zero, values that are
// finite. REQUIRES: sum.size() == f.shard.size(). Throws CommError.
void add_sparse(const ReceivedFrame& f, std::span<float> sum);

}  // namespace pride
