// A GPU of the tests: tensors of the CPU are its memory, and its driver and compiler are the fakes
// of tests/device/cuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace pride {

// While one lives, CPU tensors count as tensors of a GPU. Torch's streams are those of torch's own
// generic API: that of the CPU, which has none, is replaced. Its work is done when a call returns,
// so nothing waits for it; it waits for pride's queue on request.
class FakeGpu {
 public:
  FakeGpu();
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  // How often a stream of pride had to wait for torch's, and torch's for one of pride.
  static int followed();
  static int led();

  static void fill_up();  // the driver's next allocation finds no memory
};

}  // namespace pride
