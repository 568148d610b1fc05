// The kernels that the methods call in a step, each with the arrays that it works on: what
// `pride bench kernels` times and checks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "bench/kernels/arrays.h"

namespace pride::app {

struct KernelRow {
  std::string name;
  double bytes = 0;  // read and written for each coordinate
  KernelShape shape = {};
  std::function<void(KernelArrays&)> run = {};
  // After the arrays are filled, where the kernel asks for more than that.
  std::function<void(KernelArrays&)> prepare = {};
  bool dispatched = true;  // false: plain code, the same on every instruction set
};

// memcpy first. `n_rows`: how many ranks' rows votes, counts and means read; a row for each.
std::vector<KernelRow> kernel_rows(std::span<const std::size_t> n_rows);

}  // namespace pride::app
