// The bodies of device kernels as functions of the host.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "device/device.h"

namespace pride::device {
namespace {

struct Entry {
  const char* name;
  std::size_t bytes;
  void (*run)(const std::byte* job, u64 chunk);
};

template <typename Job, void (*body)(const Job&, u64)>
void run(const std::byte* job, u64 chunk) {
  body(*reinterpret_cast<const Job*>(job), chunk * kChunk);
}

constexpr Entry kEntries[] = {
#define PRIDE_KERNEL(name, Job) {#name, sizeof(Job), run<Job, name>},
    PRIDE_KERNELS
#undef PRIDE_KERNEL
};
static_assert(std::size(kEntries) == kKernels);

const Entry& entry_of(Kernel kernel) { return kEntries[static_cast<std::size_t>(kernel)]; }

}  // namespace

const char* name_of(Kernel kernel) noexcept { return entry_of(kernel).name; }
std::size_t job_bytes(Kernel kernel) noexcept { return entry_of(kernel).bytes; }

void run_on_host(const Launch& launch, u64 seed) {
  const Entry& entry = entry_of(launch.kernel);
  std::vector<std::pair<std::size_t, u64>> chunks;  // job, chunk of the job
  for (std::size_t job = 0; job + 1 < launch.first.size(); ++job) {
    const u64 n = launch.first[job + 1] - launch.first[job];
    for (u64 c = 0; c < n; ++c) chunks.emplace_back(job, c);
  }
  std::ranges::shuffle(chunks, std::mt19937(static_cast<std::uint32_t>(seed)));
  for (const auto& [job, c] : chunks) entry.run(launch.jobs.data() + job * entry.bytes, c);
}

}  // namespace pride::device
