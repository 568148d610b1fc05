// Devices: where an optimizer's tensors and state may lie, and its method run, instead of the host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pride {

class Device;

// A GPU of CUDA by its number, with a queue of its own. The driver's libcuda.so.1 and NVRTC are
// looked for at run time; the kernels are compiled for this GPU at the first use and kept in a
// cache folder. Throws InvalidArgument with the reason where the device cannot be used.
std::shared_ptr<Device> cuda_device(int number);

// What was found on this machine. `reason`: why there are no GPUs here, or why they cannot be used.
struct CudaGpu {
  int number = 0;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  std::string architecture;  // "sm_90"
  std::uint64_t bytes = 0;   // of its memory
};
struct CudaReport {
  std::vector<CudaGpu> gpus;
  std::string driver;  // version of CUDA that the driver has, "13.0"; empty: no driver
  std::string nvrtc;   // path and version of NVRTC; empty: none was found
  std::string cache;   // the folder of compiled kernels
  std::string reason;
};
CudaReport cuda_report();

}  // namespace pride
