// The report on this machine's CUDA, and devices by number.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <string>

#include "device/cuda_device.h"
#include "device/kernel_cache.h"
#include "device/kernel_image.h"
#include "pride/device.h"
#include "pride/error.h"

namespace pride {
namespace {

// Until NVRTC is found, each call searches again, as for the driver.
const cuda::Nvrtc& nvrtc() {
  static std::mutex mutex;  // guards `found`
  static auto& found = *new std::unique_ptr<const cuda::Nvrtc>;
  const std::lock_guard lock(mutex);
  if (found == nullptr) found = std::make_unique<const cuda::Nvrtc>(cuda::find_nvrtc());
  return *found;
}

void report_gpus(CudaReport& report) {
  const cuda::Driver& driver = cuda::driver();
  report.driver = driver.version();
  for (int number = 0; number < driver.count(); ++number) {
    const cuda::GpuFacts facts = cuda::gpu_facts(driver, number);
    report.gpus.push_back({.number = number,
                           .name = facts.name,
                           .architecture = concat("sm_", facts.chip),
                           .bytes = facts.bytes});
  }
}

}  // namespace

std::shared_ptr<Device> cuda_device(int number) {
  const cuda::Driver& driver = cuda::driver();
  const int chip = cuda::gpu_facts(driver, number).chip;
  const cuda::KernelImage image =
      cuda::kernel_image(nvrtc(), chip, cuda::kernel_source(), cuda::cache_folder());
  auto device = std::make_shared<cuda::CudaDevice>(driver, number, *image.bytes);
  device->set_warning(image.warning);
  return device;
}

void set_make_room(Device& device, std::function<void()> make_room) {
  device.set_make_room(std::move(make_room));
}

CudaReport cuda_report() {
  CudaReport report;
  report.cache = cuda::cache_folder().string();
  const auto note = [&](const std::string& reason) {
    report.reason += (report.reason.empty() ? "" : "; ") + reason;
  };
  try {
    report_gpus(report);
  } catch (const Error& e) {
    note(e.what());
  }
  try {
    report.nvrtc = concat(nvrtc().path(), ", version ", nvrtc().version());
    for (const CudaGpu& gpu : report.gpus) nvrtc().target_of(std::stoi(gpu.architecture.substr(3)));
  } catch (const Error& e) {
    note(e.what());
  }
  return report;
}

}  // namespace pride
