// The report on this machine's CUDA, and devices by number.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <string>

#include "device/kernel_cache.h"
#include "device/kernel_check.h"
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

// Throws InvalidArgument if a kernel has other bits than the host's.
void check_kernels(const cuda::LoadedDevice& loaded, std::uint64_t key, const std::string& who) {
  const std::string wrong = kernel_verdict(*loaded.device, key, cuda::cache_folder());
  PRIDE_CHECK(wrong.empty(), loaded.device->name(), ": ", wrong, who);
}

}  // namespace

std::shared_ptr<Device> cuda::open_device(int number, bool check) {
  const Driver& driver = cuda::driver();
  const int chip = gpu_facts(driver, number).chip;
  const std::string of_driver = concat("driver of CUDA ", driver.version(), ")");
  std::string who = concat(" (sm_", chip, ", ", of_driver);
  try {
    const LoadedDevice loaded = load_device(driver, number, nvrtc_candidates(loaded_libraries()));
    nvrtc(loaded.nvrtc);
    who = concat(" (sm_", chip, ", NVRTC ", loaded.nvrtc->version(), ", ", of_driver);
    if (check) check_kernels(loaded, verdict_key(loaded, driver, chip), who);
    return loaded.device;
  } catch (const InvalidArgument&) {
    throw;  // it names all of them
  } catch (const OutOfMemory&) {
    throw;  // it is of none of them
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
  all.emplace_back("GPU path", !reason.empty()      ? "off: " + reason
                               : !unchecked.empty() ? "not checked, no memory now: " + unchecked
                                                    : "on");
  return all;
}

CudaReport cuda_report(bool run_kernels) {
  CudaReport report;
  report.cache = cuda::cache_folder().string();
  const auto add = [](std::string& all, const char* text) {
    all += concat(all.empty() ? "" : "; ", text);
  };
  const auto note = [&](const char* reason) { add(report.reason, reason); };
  try {
    report_gpus(report);
  } catch (const Error& e) {
    note(e.what());
  }
  for (const CudaGpu& gpu : report.gpus) {
    try {
      if (run_kernels) cuda_device(gpu.number);
    } catch (const OutOfMemory& e) {
      add(report.unchecked, e.what());  // not off: optimizers may run there
    } catch (const Error& e) {
      note(e.what());
    }
  }
  const bool opened = run_kernels && !report.gpus.empty();
  try {
    const auto found = nvrtc();
    report.nvrtc = concat(found->path(), ", version ", found->version());
    if (opened) return report;  // the chips may have taken other candidates
    for (const CudaGpu& gpu : report.gpus) found->target_of(std::stoi(gpu.architecture.substr(3)));
  } catch (const Error& e) {
    if (!opened) note(e.what());
  }
  return report;
}

}  // namespace pride
