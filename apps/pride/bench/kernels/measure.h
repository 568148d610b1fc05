// Times of the kernels on one core, compared with memcpy, and checks of their results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/kernels/rows.h"
#include "program/bench/timing.h"

namespace pride::app {

struct KernelBench {
  std::vector<std::size_t> sizes = {};  // coordinates
  std::vector<std::string> isas = {};   // of available_isas()
  double seconds = 0.1;                 // minimum per cell; memcpy runs as long
  int least = 5;                        // minimum measurements per cell
};

struct KernelCell {
  std::string name;
  std::string isa;  // empty: the code is the same for all sets
  std::size_t coords = 0;
  double bytes = 0;  // read and written in a call
  Times times = {};
  Times memcpy_times = {};  // of as many bytes, half of them read; alternating with the kernel
  // Values whose bits differ from those of SCALAR, plain code, on the same arrays. None if plain
  // code itself was measured.
  std::optional<std::size_t> wrong_values = {};

  double bytes_per_s() const { return bytes / times.median_s; }
  double of_memcpy() const { return memcpy_times.median_s / times.median_s; }
};

// Measurements of the kernel and of memcpy alternate, so that other work on the machine affects
// both. Each lasts at least a millisecond: short calls are repeated. Times are processor time of
// the calling thread. Calls `done` after each cell: by size, then row, then instruction set. At the
// end it restores the active instruction set. Throws InvalidArgument if a set is unavailable.
void bench_kernels(std::span<const KernelRow> rows, const KernelBench& how,
                   const std::function<void(const KernelCell&)>& done);

// The rows whose names contain a match of the regular expression `pattern`. Throws InvalidArgument
// on an invalid pattern, or one without a match, and lists the rows.
std::vector<KernelRow> matching_rows(std::vector<KernelRow> rows, const std::string& pattern);

}  // namespace pride::app
