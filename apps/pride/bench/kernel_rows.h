// The kernels that the methods call in a step, each with the memory that it works on: what
// `pride bench kernels` times and checks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "pride/bf16.h"
#include "pride/flat_buffer.h"

namespace pride::app {

// How much of each kind of memory a kernel works on, for each of n coordinates.
struct KernelShape {
  std::size_t floats = 0;   // arrays of n
  std::size_t bits = 0;     // rows of n packed bits
  std::size_t numbers = 0;  // arrays of n 32-bit numbers, rounded up to whole words of bits
  std::size_t halves = 0;   // arrays of n bfloat16
};

// Everything that a kernel reads or writes.
class KernelArrays {
 public:
  // All floats are in (-1, 1). `awkward`: with zeros of both signs and denormals among them, at the
  // same coordinates of all arrays. Equal arguments make equal contents.
  KernelArrays(const KernelShape& shape, std::size_t n, bool awkward);

  std::size_t n() const noexcept { return n_; }
  std::size_t n_words() const noexcept { return n_words_; }
  std::span<float> array(std::size_t i) { return floats_.span().subspan(i * stride_, n_); }
  std::span<std::uint64_t> bits(std::size_t row) { return lines(row, 1); }
  // Rows [row, row + count) in one piece.
  std::span<std::uint64_t> lines(std::size_t row, std::size_t count) {
    return std::span(words_).subspan(row * n_words_, count * n_words_);
  }
  std::span<std::uint32_t> numbers() { return numbers_; }
  std::span<BFloat16> halves() { return halves_; }
  std::vector<const float*> arrays(std::size_t first, std::size_t count);

  // Values that differ: floats, words, numbers, halves, and `result`.
  // REQUIRES: of the same shape and size.
  std::size_t differing(const KernelArrays& other) const;

  std::uint64_t result = 0;  // the bits of what the kernel returned
  // Blocks that stay in the cache, and pointers: no result is in them.
  static constexpr std::size_t kBlock = 4096;  // coordinates, as in the methods
  alignas(64) std::array<float, kBlock> block = {};
  alignas(64) std::array<std::int8_t, kBlock> levels = {};
  std::vector<std::uint64_t> planes = {};
  std::vector<const std::uint64_t*> rows = {};  // all rows of bits

 private:
  std::size_t n_, n_words_, stride_;
  FlatBuffer floats_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> numbers_;
  std::vector<BFloat16> halves_;
};

struct KernelRow {
  std::string name;
  double bytes = 0;  // read and written for each coordinate
  KernelShape shape = {};
  std::function<void(KernelArrays&)> run;
  // After the arrays are filled, where the kernel asks for more than that.
  std::function<void(KernelArrays&)> prepare = {};
  bool dispatched = true;  // false: plain code, the same on every instruction set
};

// memcpy first. `n_rows`: how many ranks' rows votes, counts and means read; a row for each.
std::vector<KernelRow> kernel_rows(std::span<const std::size_t> n_rows);

// Its parts.
std::vector<KernelRow> dense_kernel_rows(std::span<const std::size_t> n_rows);
std::vector<KernelRow> sign_kernel_rows(std::span<const std::size_t> n_rows);
std::vector<KernelRow> level_kernel_rows(std::span<const std::size_t> n_rows);
std::vector<KernelRow> code_kernel_rows(std::span<const std::size_t> n_rows);

}  // namespace pride::app
