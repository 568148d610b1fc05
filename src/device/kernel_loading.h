// A GPU with its kernels, compiled by an NVRTC whose output the driver loads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_device.h"
#include "device/kernel_image.h"

namespace pride::cuda {

struct LoadedDevice {
  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<const Nvrtc> nvrtc;
  KernelImage image;
};

// Tries NVRTC's candidates in their order: one may be missing, be too old for the kernels or the
// chip, or be of a newer CUDA than the driver, which then refuses its output. Throws
// InvalidArgument with the reason of each if none will do.
LoadedDevice load_device(const Driver& driver, int number,
                         const std::vector<std::string>& candidates);

// Of all that the bits of its kernels depend on.
std::uint64_t verdict_key(const LoadedDevice& loaded, const Driver& driver, int chip);

}  // namespace pride::cuda
