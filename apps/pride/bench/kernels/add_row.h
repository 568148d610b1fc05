// Makes a row from a kernel and its arguments, which determine the arrays, the bytes and the call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <type_traits>
#include <utility>

#include "bench/kernels/rows.h"

// The name of a kernel, and the kernel as a lambda, because an overloaded function has no address.
#define PRIDE_KERNEL(kernel) #kernel, [](const auto&... args) { return kernels::kernel(args...); }

namespace pride::app {

// An argument of a kernel: a span over `count` adjacent arrays. Arrays of a type are assigned in
// the order of the arguments.
template <typename T>
struct Piece {
  using Element = T;
  double bytes = 0;  // read and written for each coordinate
  std::size_t count = 1;
  std::size_t first = 0;  // of the row's arrays; set by AddRow
};

// The same, passed as pointers to the arrays.
template <typename T>
struct Pointers : Piece<T> {};

template <typename T>
std::size_t& arrays_of(KernelShape& shape) {
  if constexpr (std::same_as<T, float>) return shape.floats;
  if constexpr (std::same_as<T, std::uint64_t>) return shape.bits;
  if constexpr (std::same_as<T, std::uint32_t>) return shape.numbers;
  if constexpr (std::same_as<T, BFloat16>) return shape.halves;
}

template <typename Arg>
void place(Arg& arg, KernelRow& row) {
  if constexpr (requires { typename Arg::Element; }) {
    std::size_t& taken = arrays_of<typename Arg::Element>(row.shape);
    arg.first = std::exchange(taken, taken + arg.count);
    row.bytes += arg.bytes;
  }
}

template <typename T>
std::span<T> resolved(const Piece<T>& piece, KernelArrays& a) {
  return a.piece<T>(piece.first, piece.count);
}
template <typename T>
std::span<const T* const> resolved(const Pointers<T>& rows, KernelArrays& a) {
  return a.pointers<T>(rows.first, rows.count);
}
// A value, or a function of the arrays.
template <typename Value>
auto resolved(const Value& value, KernelArrays& a) {
  if constexpr (std::invocable<Value, KernelArrays&>) {
    return value(a);
  } else {
    return value;
  }
}

template <typename T>
std::uint64_t result_bits(T value) {
  if constexpr (std::floating_point<T>) {
    return std::bit_cast<std::uint64_t>(static_cast<double>(value));
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

class AddRow {
 public:
  explicit AddRow(std::vector<KernelRow>& rows, std::string suffix = "")
      : rows_(rows), suffix_(std::move(suffix)) {}

  template <typename Kernel, typename... Args>
  KernelRow& operator()(const std::string& name, Kernel kernel, Args... args) const {
    KernelRow row{.name = name + suffix_};
    (place(args, row), ...);
    row.run = [kernel, args...](KernelArrays& a) {
      if constexpr (std::is_void_v<decltype(kernel(resolved(args, a)...))>) {
        kernel(resolved(args, a)...);
      } else {
        a.result = result_bits(kernel(resolved(args, a)...));
      }
    };
    return rows_.emplace_back(std::move(row));
  }

 private:
  std::vector<KernelRow>& rows_;
  std::string suffix_;
};

}  // namespace pride::app
