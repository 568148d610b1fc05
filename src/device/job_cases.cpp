// SPDX-License-Identifier: Apache-2.0
#include "device/job_cases.h"

#include "device/job_maker.h"
#include "device/jobs.h"
#include "device/random_calls.h"

namespace pride {
namespace {

// The alternatives of kernels::Call that become jobs of a kernel.
template <std::size_t... Kind>
std::vector<std::size_t> kinds_of(device::Kernel kernel, std::index_sequence<Kind...>) {
  std::vector<std::size_t> kinds;
  const auto add = [&](const kernels::Call& call) {
    if (device::job_of(call).kernel == kernel) kinds.push_back(call.index());
  };
  (add(kernels::Call(std::in_place_index<Kind>)), ...);
  return kinds;
}

}  // namespace

Jobs random_jobs(device::Kernel kernel, std::span<const std::size_t> sizes,
                 const JobOptions& options, JobMemory& memory) {
  const auto kinds = kinds_of(kernel, std::make_index_sequence<device::kCallKinds>());
  device::JobMaker make(memory, options);
  device::RandomCalls calls(make);
  Jobs jobs;
  for (const std::size_t n : sizes) {
    make.n = n;
    const std::size_t kind = make.timed() ? 0 : make.below(kinds.size());
    const device::Job job = device::job_of(calls.of_kind(kinds[kind]));
    jobs.bytes.insert(jobs.bytes.end(), job.bytes.begin(),
                      job.bytes.begin() + static_cast<std::ptrdiff_t>(job_bytes(kernel)));
    jobs.first.push_back(jobs.first.back() + (job.n + device::kChunk - 1) / device::kChunk);
  }
  return jobs;
}

}  // namespace pride
