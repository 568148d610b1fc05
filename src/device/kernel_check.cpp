// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>

#include "device/job_cases.h"
#include "device/kernel_cache.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

using Arrays = std::vector<std::vector<std::byte>>;

constexpr std::array<std::size_t, 8> kAwkward = {1, 31, 33, 64, 255, 257, 1000, 4099};
constexpr std::uint64_t kCases = 2;  // another number for other jobs, so that no verdict is reused

struct AllJobs {
  std::array<Jobs, device::kKernels> jobs;
  std::array<std::size_t, device::kKernels> end = {};  // arrays of this kernel and those before
};

AllJobs jobs_of_all(JobMemory& memory) {
  AllJobs all;
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const JobOptions options{.seed = static_cast<std::uint32_t>(k + 1)};
    all.jobs[k] = random_jobs(static_cast<device::Kernel>(k), kAwkward, options, memory);
    all.end[k] = memory.arrays();
  }
  return all;
}

// The byte where the arrays differ. Floats may differ in the bits of a NaN, which nobody promises.
std::optional<std::size_t> difference(std::span<const std::byte> a, std::span<const std::byte> b,
                                      bool floats) {
  const auto is_nan = [](std::span<const std::byte> word) {
    float x = 0;
    std::memcpy(&x, word.data(), sizeof x);
    return std::isnan(x);
  };
  for (std::size_t at = 0; at < a.size(); at += sizeof(float)) {
    const std::size_t n = std::min(sizeof(float), a.size() - at);
    const auto mine = a.subspan(at, n), theirs = b.subspan(at, n);
    if (std::ranges::equal(mine, theirs)) continue;
    if (!floats || n < sizeof(float) || !is_nan(mine) || !is_nan(theirs)) return at;
  }
  return std::nullopt;
}

}  // namespace

std::string wrong_kernel(Device& device) {
  JobMemory here(nullptr);
  const AllJobs on_host = jobs_of_all(here);
  JobMemory there(device, here.room());
  const AllJobs on_device = jobs_of_all(there);
  there.upload();
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const auto kernel = static_cast<device::Kernel>(k);
    device.launch(on_device.jobs[k].launch(kernel));
    device::run_on_host(on_host.jobs[k].launch(kernel));
  }
  const Arrays expected = here.contents(), actual = there.contents();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::optional<std::size_t> byte = difference(expected[i], actual[i], here.of_floats(i));
    if (!byte) continue;
    const auto k = std::ranges::upper_bound(on_host.end, i) - on_host.end.begin();
    return concat("kernel ", name_of(static_cast<device::Kernel>(k)), " gives other bits than the ",
                  "host, from byte ", *byte, " of ", expected[i].size(), " of array ",
                  i - (k == 0 ? 0 : on_host.end[static_cast<std::size_t>(k) - 1]));
  }
  return "";
}

std::string kernel_verdict(Device& device, std::uint64_t key, const std::filesystem::path& folder) {
  static std::mutex mutex;  // guards `right`; held while kernels run
  static auto& right = *new std::set<std::uint64_t>;
  const std::uint64_t file = Digest().text("verdict").number(kCases).number(key).value();
  const std::lock_guard lock(mutex);
  if (right.contains(file)) return "";
  const bool cached = cuda::read_cached(folder, file).has_value();
  std::string verdict = cached ? "" : wrong_kernel(device);
  if (!verdict.empty()) return verdict;
  if (!cached) cuda::write_cached(folder, file, "");  // kernel_image() has warned if it cannot
  right.insert(file);
  return "";
}

}  // namespace pride
