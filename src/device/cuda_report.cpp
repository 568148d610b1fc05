// The report on this machine's CUDA, and devices by number.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <string>

#include "base/digest.h"
#include "device/cuda_device.h"
#include "device/kernel_cache.h"
#include "device/kernel_check.h"
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

std::shared_ptr<Device> cuda::open_device(int number, bool check) {
  const Driver& driver = cuda::driver();
  const int chip = gpu_facts(driver, number).chip;
  const Nvrtc& compiler = nvrtc();
  const std::string who = concat(" (sm_", chip, ", NVRTC ", compiler.version(), ", driver of CUDA ",
                                 driver.version(), ")");
  try {
    const KernelImage image = kernel_image(compiler, chip, kernel_source(), cache_folder());
    auto device = std::make_shared<CudaDevice>(driver, number, *image.bytes);
    device->set_warning(image.warning);
    if (!check) return device;
    Digest key;
    key.text(*image.bytes).text(compiler.version()).text(driver.version());
    key.number(static_cast<std::uint64_t>(chip));
    const std::string wrong = kernel_verdict(*device, key.value(), cache_folder());
    PRIDE_CHECK(wrong.empty(), device->name(), ": ", wrong);
    return device;
  } catch (const Error& e) {
    throw InvalidArgument(e.what() + who);
  }
}

std::shared_ptr<Device> cuda_device(int number) { return cuda::open_device(number, true); }

void set_make_room(Device& device, std::function<void()> make_room) {
  device.set_make_room(std::move(make_room));
}

std::vector<std::pair<std::string, std::string>> CudaReport::lines() const {
  const auto or_none = [](const std::string& text) { return text.empty() ? "none" : text; };
  std::vector<std::pair<std::string, std::string>> all;
  for (const CudaGpu& gpu : gpus) {
    all.emplace_back("GPU", concat("cuda:", gpu.number, " ", gpu.name, ", ", gpu.architecture, ", ",
                                   gpu.bytes >> 20, " MiB"));
  }
  if (gpus.empty()) all.emplace_back("GPU", "none");
  all.emplace_back("CUDA driver", or_none(driver));
  all.emplace_back("NVRTC", or_none(nvrtc));
  all.emplace_back("kernel cache", or_none(cache));
  all.emplace_back("GPU path", reason.empty() ? "on" : "off: " + reason);
  return all;
}

CudaReport cuda_report(bool run_kernels) {
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
  if (!run_kernels || !report.reason.empty()) return report;
  for (const CudaGpu& gpu : report.gpus) {
    try {
      cuda_device(gpu.number);
    } catch (const Error& e) {
      note(e.what());
    }
  }
  return report;
}

}  // namespace pride
