// The job of a device's kernel for a call of a space.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "device/device.h"
#include "kernels/calls.h"

namespace pride::device {

struct Job {
  Kernel kernel;
  u64 n = 0;  // coordinates; of kernels over blocks kChunk for each block
  static constexpr std::size_t kLargest = std::max({std::size_t{0}
#define PRIDE_KERNEL(name, Job) , sizeof(Job)
                                                    PRIDE_KERNELS
#undef PRIDE_KERNEL
  });
  alignas(u64) std::array<std::byte, kLargest> bytes;  // job_bytes(kernel) of them
};

Job job_of(const kernels::Call& call);

}  // namespace pride::device
