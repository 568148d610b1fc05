// The methods' kernels, each with its arrays, for `pride bench kernels` to time and check.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "pride/bf16.h"
#include "pride/flat_buffer.h"

namespace pride::app {

// Numbers of arrays of each type, each of n coordinates.
struct KernelShape {
  std::size_t floats = 0;
  std::size_t bits = 0;     // rows of packed bits
  std::size_t numbers = 0;  // 32 bits each, rounded up to whole words of bits
  std::size_t halves = 0;   // bfloat16
};

// Arrays of one type, on huge pages like the parameters of a training run.
template <typename T>
struct KernelStore {
  KernelStore(std::size_t count, std::size_t stride_size, std::size_t used_size)
      : stride(stride_size),
        used(used_size),
        memory((count * stride * sizeof(T) + sizeof(float) - 1) / sizeof(float)),
        values(reinterpret_cast<T*>(memory.data()), count * stride) {
    std::uninitialized_value_construct(values.begin(), values.end());
    for (std::size_t i = 0; i < count; ++i) pointers.push_back(values.data() + i * stride);
  }

  std::size_t stride, used;  // values from one array to the next; values of an array
  FlatBuffer memory;
  std::span<T> values;
  std::vector<const T*> pointers;  // to each array
};

class KernelArrays {
 public:
  // All floats are in (-1, 1). `awkward`: some are zeros of both signs and denormals, at the same
  // coordinates in all arrays. Equal arguments make equal contents.
  KernelArrays(const KernelShape& shape, std::size_t n, bool awkward);

  std::size_t n() const noexcept { return n_; }
  std::size_t n_words() const noexcept { return n_words_; }
  // Arrays [first, first + count) of a type, as one span.
  template <typename T>
  std::span<T> piece(std::size_t first, std::size_t count = 1) {
    const auto& store = std::get<KernelStore<T>>(stores_);
    return store.values.subspan(first * store.stride, (count - 1) * store.stride + store.used);
  }
  // Pointers to these arrays.
  template <typename T>
  std::span<const T* const> pointers(std::size_t first, std::size_t count) const {
    return std::span(std::get<KernelStore<T>>(stores_).pointers).subspan(first, count);
  }
  std::span<float> array(std::size_t i) { return piece<float>(i); }
  std::span<std::uint64_t> bits(std::size_t row) { return piece<std::uint64_t>(row); }
  std::span<std::uint32_t> numbers() { return piece<std::uint32_t>(0); }
  std::span<BFloat16> halves() { return piece<BFloat16>(0); }

  // Values that differ in any bit: floats, words, numbers, halves, and `result`.
  // REQUIRES: both have the same shape and size.
  std::size_t differing(const KernelArrays& other) const;

  std::uint64_t result = 0;  // bits of the value that the kernel returned

 private:
  std::size_t n_, n_words_;
  std::tuple<KernelStore<float>, KernelStore<std::uint64_t>, KernelStore<std::uint32_t>,
             KernelStore<BFloat16>>
      stores_;
};

struct KernelRow {
  std::string name;
  double bytes = 0;  // read and written for each coordinate
  KernelShape shape = {};
  std::function<void(KernelArrays&)> run = {};
  // Called after the arrays are filled, if the kernel needs special values.
  std::function<void(KernelArrays&)> prepare = {};
  bool dispatched = true;  // false: plain code, the same on every instruction set
};

// The first row is memcpy. `n_rows`: numbers of ranks for votes, counts and means; a row for each.
std::vector<KernelRow> kernel_rows(std::span<const std::size_t> n_rows);

}  // namespace pride::app
