// The report on this machine's CUDA, and devices by number.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <string>

#include "device/kernel_cache.h"
#include "device/kernel_loading.h"
#include "pride/device.h"
#include "pride/error.h"

namespace pride {
namespace {

// The NVRTC whose kernels run, or else the first that can be opened. Until there is one, each call
// searches again, as for the driver.
std::shared_ptr<const cuda::Nvrtc> nvrtc(std::shared_ptr<const cuda::Nvrtc> of_device = nullptr) {
  static std::mutex mutex;  // guards `found`
  static auto& found = *new std::shared_ptr<const cuda::Nvrtc>;
  const std::lock_guard lock(mutex);
  if (of_device != nullptr) found = std::move(of_device);
  if (found == nullptr) found = cuda::find_nvrtc();
  return found;
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
  cuda::LoadedDevice loaded =
      cuda::load_device(driver, number, cuda::nvrtc_candidates(loaded_libraries()));
  nvrtc(loaded.nvrtc);
  return loaded.device;
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
    const auto found = nvrtc();
    report.nvrtc = concat(found->path(), ", version ", found->version());
    for (const CudaGpu& gpu : report.gpus) found->target_of(std::stoi(gpu.architecture.substr(3)));
  } catch (const Error& e) {
    note(e.what());
  }
  return report;
}

}  // namespace pride
