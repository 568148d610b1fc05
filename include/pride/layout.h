// Layout: numbers the coordinates of all tensors, the same on every rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pride {

// Every tensor starts at a multiple of this many coordinates; so do buckets and shards.
inline constexpr std::size_t kAlignment = 64;

constexpr std::size_t align_up(std::size_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

// Whether methods that orthogonalise matrices (dlion-muon, muon, ...) treat a tensor as one.
enum class AsMatrix : std::uint8_t {
  kByName,  // unless its name holds a word of the method's option not_matrices
  kYes,     // if it has two dimensions or more, of which none is 1
  kNo,
  kUnnamed,  // the caller made the name up: such a method refuses the tensor
};
// What such a method makes of it.
enum class MatrixForm : std::uint8_t { kNone, kWhole, kSplit };

// The caller's description of one parameter tensor.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;  // empty: a scalar
  int group = 0;                    // index of its parameter group
  // If this layout is a part of a larger model: the coordinate of the tensor's first value in the
  // layout of the whole model. That number keys the random bits (ties, zeros, rounding). None: the
  // coordinate in this layout keys them.
  std::optional<std::uint64_t> first_coord = std::nullopt;
  AsMatrix as_matrix = AsMatrix::kByName;
};

// One tensor: flat coordinates [offset, offset + n), then zeros up to the alignment.
struct TensorSlot {
  TensorSpec spec;
  std::size_t offset = 0;
  std::size_t n = 0;
  std::uint64_t to_whole =
      0;  // flat coordinate + to_whole, mod 2^64: the coordinate in the whole model
};

// Tensors in declaration order, which is the canonical order of coordinates. Immutable.
class Layout {
 public:
  // Throws InvalidArgument on an empty or repeated name, a negative dimension or a negative group.
  explicit Layout(std::vector<TensorSpec> tensors);

  const std::vector<TensorSlot>& tensors() const noexcept { return tensors_; }
  std::size_t n_coords() const noexcept { return n_coords_; }    // sum of the tensors' sizes
  std::size_t flat_size() const noexcept { return flat_size_; }  // with padding; a multiple of 64
  int n_groups() const noexcept { return n_groups_; }

  // 64-bit digest of names, shapes and groups; saved states contain it.
  std::uint64_t digest() const noexcept { return digest_; }

  // Index of the tensor of that name. Throws InvalidArgument if there is none.
  std::size_t index_of(const std::string& name) const;

 private:
  std::vector<TensorSlot> tensors_;
  std::size_t n_coords_ = 0;
  std::size_t flat_size_ = 0;
  int n_groups_ = 1;
  std::uint64_t digest_ = 0;
};

}  // namespace pride
