// Sparse payload: some of n coordinates, as indices and float32 values. Sizes follow from n and the
// number of entries alone. Layout and example: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pride {

// Where the parts of a payload of k entries out of n coordinates lie. Indices are coded as Elias
// and Fano do: of each, the low bits as they are, and the high bits in unary, which takes at most
// 2 + log2(n/k) bits an entry; or, where that is shorter, as a bitmap of n bits. The indices take
// never more than n bits, each part padded to 8 bytes.
struct SparseShape {
  // REQUIRES: k <= n.
  SparseShape(std::size_t n, std::size_t k);
  std::size_t n, k;
  bool bitmap;
  std::size_t low_bits;                           // of an entry; 0 for a bitmap
  std::size_t low_words, high_words;              // a bitmap lies in the high words
  std::size_t low_at, high_at, values_at, bytes;  // from the start of the payload
};

// The most that at most k entries take, however they are spread over payloads of n coordinates
// together: k (2 + log2(n/k)) bits of indices, by the log sum inequality, 4k bytes of values, and
// for each payload its count and padding. REQUIRES: k <= n.
std::uint64_t sparse_bytes_bound(std::size_t n, std::size_t k, std::size_t n_payloads);

// Writes the entries whose bits are set, in ascending order.
// REQUIRES: mask has words for n coordinates and k bits set, none of them behind n; payload.size()
// is SparseShape(n, k).bytes.
void write_sparse(std::span<const std::uint64_t> mask, std::span<const float> values, std::size_t k,
                  std::span<std::byte> payload);

// sum[i] += value for every entry of a payload that came from rank `from`. Everything is checked
// before anything is added: the number of entries, the size, indices that ascend and are below n,
// padding that is zero, values that are finite. Throws CommError, beginning with `where`.
void add_sparse(std::span<const std::byte> payload, int from, const std::string& where,
                std::span<float> sum);

}  // namespace pride
