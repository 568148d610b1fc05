// Batches: calls of kernels that are not launched yet, merged into launches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "device/device.h"
#include "device/jobs.h"
#include "device/touches.h"

namespace pride::device {

// Launches give the values that the calls would give in their order.
class Batches {
 public:
  void add(const Job& job, const Touches& touches);
  // Whether a call with these touches must come after a launch of these batches.
  bool conflict(const Touches& touches) const;
  void launch(Device& on) const;
  void clear() { n_ = 0; }

 private:
  // Calls of one kernel, which run in any order, and the memory that they touch.
  struct Batch {
    Kernel kernel;
    std::vector<std::byte> jobs;
    std::vector<u64> first;
    std::array<std::map<std::uintptr_t, std::uintptr_t>, 3> used;  // begin to end, by Use
    bool conflicts(const Touches& touches) const;
    void use(const Touch& touch);
  };
  Batch& batch_of(Kernel kernel, const Touches& touches);

  std::vector<Batch> batches_;
  std::size_t n_ = 0;  // in use; the others keep their memory
};

}  // namespace pride::device
