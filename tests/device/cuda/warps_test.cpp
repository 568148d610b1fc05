// What only a GPU compiles of the kernels, run by threads: lanes of a warp, ballots that all of
// them must reach, the search for a chunk's job, the stride over the grid. The oracle is the host's
// loop.
// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/warps.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "device/job_cases.h"

namespace pride {
namespace {

using device::Kernel;

TEST(Warps, GiveTheHostsBits) {
  constexpr std::array<std::size_t, 12> sizes = {1,   31,  33,  64,   65, 127,
                                                 255, 256, 257, 1000, 3,  700};
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const auto kernel = static_cast<Kernel>(k);
    for (const std::uint32_t seed : {1, 3}) {  // also the number of blocks
      JobMemory host(nullptr), of_warps(nullptr);
      const Jobs expected = random_jobs(kernel, sizes, {.seed = seed}, host);
      const Jobs jobs = random_jobs(kernel, sizes, {.seed = seed}, of_warps);
      device::run_on_host(expected.launch(kernel));
      run_as_warps(name_of(kernel), jobs.bytes.data(), jobs.first.data(), sizes.size(), seed);
      EXPECT_EQ(first_difference(host.contents(), of_warps.contents()), "")
          << name_of(kernel) << ", seed " << seed;
    }
  }
}

TEST(Warps, AScaleThatIsNoNumberIsTheHostKernelsNaN) {
  const float g[3] = {1, std::bit_cast<float>(0xFFC01234U), 2}, zeros[3] = {};
  float scale = 0;
  device::u64 bits = 0;
  std::uint32_t fault = device::kNoTensor;
  device::Compress job{};
  job.g = {g, device::kFloat32, 1, nullptr};
  job.m = job.e = zeros;
  job.bits = &bits, job.scales = &scale;
  job.size = 3, job.n = device::kChunk;
  job.f = {0.9f, 1, 1};
  job.fault = {&fault, 5};
  const device::u64 first[2] = {0, 1};
  run_as_warps("compress", &job, first, 1, 1);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(scale), 0x7FC00000U);
  EXPECT_EQ(fault, 5U);
}

TEST(Warps, FindTheJobOfEachChunkAmongMany) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 300; ++i) sizes.push_back(i % 7 == 0 ? 600 : 1 + i % 5);
  JobMemory host(nullptr), of_warps(nullptr);
  const Jobs expected = random_jobs(Kernel::k_scale, sizes, {}, host);
  const Jobs jobs = random_jobs(Kernel::k_scale, sizes, {}, of_warps);
  device::run_on_host(expected.launch(Kernel::k_scale));
  run_as_warps("scale", jobs.bytes.data(), jobs.first.data(), 300, 2);
  EXPECT_EQ(first_difference(host.contents(), of_warps.contents()), "");
}

}  // namespace
}  // namespace pride
