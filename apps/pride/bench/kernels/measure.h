// What the kernels take on one core, beside memcpy, and whether they are right.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/kernels/rows.h"
#include "bench/timing.h"

namespace pride::app {

struct KernelBench {
  std::vector<std::size_t> sizes = {};  // coordinates
  std::vector<std::string> isas = {};   // of available_isas()
  double seconds = 0.1;                 // of each cell, and as long for memcpy
  int least = 5;                        // measurements of each cell
};

struct KernelCell {
  std::string name;
  std::string isa;  // empty: the same code on all of them
  std::size_t coords = 0;
  double bytes = 0;  // read and written in a call
  Times times = {};
  Times memcpy_times = {};  // of as many bytes, half of them read; in turn with the kernel
  // Values that do not have the bits that SCALAR, which is plain code, makes of the same arrays.
  // None where it was the plain code that was measured.
  std::optional<std::size_t> wrong_values = {};

  double bytes_per_s() const { return bytes / times.median_s; }
  double of_memcpy() const { return memcpy_times.median_s / times.median_s; }
};

// Measures alternate between the kernel and memcpy, so that what else the machine does hits both;
// each lasts a millisecond or more, short calls being repeated within it. Times are processor time
// of the calling thread. Calls `done` after each cell: by size, then row, then instruction set. The
// instruction set that was active is so again afterwards. Throws InvalidArgument on an instruction
// set that is not there.
void bench_kernels(std::span<const KernelRow> rows, const KernelBench& how,
                   const std::function<void(const KernelCell&)>& done);

// Those of which `pattern`, a regular expression, matches some part of the name.
// Throws InvalidArgument on a pattern that is none, or matches none; it then names the rows.
std::vector<KernelRow> matching_rows(std::vector<KernelRow> rows, const std::string& pattern);

}  // namespace pride::app
