// What the rows of kernels_bench are made of: arrays, and a kernel timed against its yardstick.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <span>
#include <string>

#include "kernels/kernels.h"

namespace pride::bench {

using namespace pride::kernels;

// Zeroed memory with huge pages where the system grants them; freed at the end of the program.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(bytes) {
    at_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    if (!std::getenv("PRIDE_BENCH_SMALL_PAGES")) ::madvise(at_, bytes_, MADV_HUGEPAGE);
  }
  ~Mapping() { ::munmap(at_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  template <typename T>
  std::span<T> as() const {
    return {static_cast<T*>(at_), bytes_ / sizeof(T)};
  }

 private:
  std::size_t bytes_;
  void* at_;
};

// Values in (-1, 1) without zeros.
void fill(std::span<float> x, std::uint64_t seed);
void fill(std::span<std::uint64_t> words, std::uint64_t seed);

inline const Blend kBlend{
    .beta1 = 0.9f, .one_minus_beta1 = 0.1f, .beta2 = 0.99f, .one_minus_beta2 = 0.01f};
inline const Step kStep{.decay = 0.99997f, .lr = 3e-4f};
inline const HashWords kHash{.key = 1, .first_word = 0};

// Four arrays of n floats and words to go with them; memcpy goes from the first to the second.
struct Arrays {
  explicit Arrays(std::size_t n, std::size_t n_arrays)
      : n_(n), floats(n * n_arrays * 4), words(words_for(n) * 8 * 8) {
    for (std::size_t i = 0; i < n_arrays; ++i) fill(array(i), i);
    fill(words.as<std::uint64_t>(), 9);
  }
  std::span<float> array(std::size_t i) const { return floats.as<float>().subspan(i * n_, n_); }
  std::span<std::uint64_t> bits(std::size_t i) const {
    return words.as<std::uint64_t>().subspan(i * words_for(n_), words_for(n_));
  }

  std::size_t n_;
  Mapping floats, words;
};

using Make = std::function<std::function<void()>(const Arrays&)>;

// A row over `n_arrays` float arrays that moves `bytes_per_coord`, against memcpy.
void add(const std::string& name, std::size_t n_arrays, double bytes_per_coord, std::size_t n,
         const Make& make);

using Rows = std::span<const std::uint64_t* const>;
using BitsKernel = std::function<void(Rows, std::span<std::uint64_t>)>;

// A row over packed signs of n_rows ranks, against reading those rows once.
void add_bits(const std::string& name, std::size_t n_rows, std::size_t n, std::size_t n_out,
              const BitsKernel& kernel);
std::uint64_t read_all(std::span<const std::uint64_t> words);

// The methods call many kernels block by block: body(at, how many) for each.
inline constexpr std::size_t kBlock = 4096;
template <typename Body>
void each_block(std::size_t n, const Body& body) {
  for (std::size_t at = 0; at < n; at += kBlock) body(at, std::min(kBlock, n - at));
}

// The rows, by what the kernels work on.
void add_float_rows(std::size_t n);
void add_feedback_rows(std::size_t n);
void add_level_rows(int bits, std::size_t n);
void add_measure_rows(std::size_t n);
void add_bits_rows(std::size_t n_rows, std::size_t n);
void add_count_forms(std::size_t n_rows, std::size_t n);

}  // namespace pride::bench
