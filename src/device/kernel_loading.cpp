// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_loading.h"

#include "device/kernel_cache.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::cuda {

LoadedDevice load_device(const Driver& driver, int number,
                         const std::vector<std::string>& candidates) {
  const int chip = gpu_facts(driver, number).chip;
  std::string tried;
  for (const std::string& candidate : candidates) {
    std::string who;
    try {
      auto nvrtc = open_nvrtc(candidate);
      KernelImage image = kernel_image(*nvrtc, chip, kernel_source(), cache_folder());
      who = concat("kernels of NVRTC ", nvrtc->version(), ", ", nvrtc->path(), ": ");
      auto device = std::make_shared<CudaDevice>(driver, number, *image.bytes);
      device->set_warning(image.warning);
      return {.device = std::move(device), .nvrtc = std::move(nvrtc), .image = std::move(image)};
    } catch (const InvalidArgument& e) {
      tried += concat("\n  ", who, e.what());
    }
  }
  throw InvalidArgument(no_nvrtc(concat(" for CUDA ", driver.version(), " or older"), tried));
}

std::uint64_t verdict_key(const LoadedDevice& loaded, const Driver& driver, int chip) {
  Digest key;
  key.text(*loaded.image.bytes).text(loaded.nvrtc->version());
  key.text(driver.version()).text(driver.build());
  return key.number(static_cast<std::uint64_t>(chip)).value();
}

}  // namespace pride::cuda
