// Tensors of more coordinates than 32 bits count: 2.2e9 on a GPU with the memory, 300,000 on the
// fake driver. Their values repeat, so that the host's result for a few blocks is the oracle.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "device/cuda/machine.h"
#include "device/job_cases.h"

namespace pride {
namespace {

using device::kChunk;
using device::Kernel;

constexpr std::size_t kPeriod = 1 << 14;  // coordinates; of bits: words, so that these repeat later

class LargeTensor : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = device_on(GetParam());
    if (GetParam() == std::string("fake")) return;
    n_ = 2'200'000'077;
    const std::size_t memory = cuda::gpu_facts(cuda::driver(), 0).bytes;
    if (memory < std::size_t{24} << 30) GTEST_SKIP() << "a GPU of " << memory << " bytes";
  }

  // Blocks of a period: the first, that across 2^31, the last whole one.
  std::vector<std::size_t> blocks() const {
    std::vector<std::size_t> all = {0, n_ / kPeriod / 2, n_ / kPeriod - 1};
    if (n_ > std::size_t{1} << 31) all.push_back((std::size_t{1} << 31) / kPeriod - 1);
    return all;
  }
  template <typename T>
  std::vector<T> at(const T* memory, std::size_t first, std::size_t count) {
    std::vector<T> values(count);
    device_->copy_out(values.data(), memory + first, count * sizeof(T));
    device_->wait(device_->record());
    return values;
  }

  std::shared_ptr<cuda::CudaDevice> device_;
  std::size_t n_ = 300'077;
};

template <typename Job>
const Job& job_in(const Jobs& jobs) {
  return *reinterpret_cast<const Job*>(jobs.bytes.data());
}

TEST_P(LargeTensor, IsEncodedAsTheHostEncodesIt) {
  const JobOptions options{.seed = 3, .period = kPeriod, .dtype = device::kBFloat16};
  JobMemory memory(device_.get());
  const std::size_t sizes[] = {n_};
  const Jobs jobs = random_jobs(Kernel::k_lion_signs, sizes, options, memory);
  auto job = job_in<device::LionSigns>(jobs);
  auto g = at(static_cast<const device::u16*>(job.g.data), 0, kPeriod);
  const auto m = at(static_cast<float*>(job.m.data), 0, kPeriod);
  auto upper = at(static_cast<const device::u16*>(job.zeros.x.data), 0, kPeriod);
  auto lower = at(job.zeros.x.lower, 0, kPeriod);
  device_->launch(jobs.launch(Kernel::k_lion_signs));
  for (const std::size_t block : blocks()) {
    auto expected_m = m;
    std::vector<device::u64> bits(kPeriod / 64);
    device::LionSigns on_host = job;
    on_host.g.data = g.data();
    on_host.m.data = expected_m.data();
    on_host.bits = bits.data();
    on_host.n = kPeriod;
    on_host.zeros.x = {upper.data(), lower.data()};
    for (std::size_t i = 0; i < kPeriod; i += kChunk) device::lion_signs(on_host, i);
    EXPECT_EQ(at(static_cast<float*>(job.m.data), block * kPeriod, kPeriod), expected_m)
        << "block " << block;
    EXPECT_EQ(at(job.bits, block * kPeriod / 64, kPeriod / 64), bits) << "block " << block;
  }
}

TEST_P(LargeTensor, IsSteppedAsTheHostStepsIt) {
  const JobOptions options{.seed = 4, .period = kPeriod, .dtype = device::kFloat32};
  JobMemory memory(device_.get());
  const std::size_t sizes[] = {n_};
  const Jobs jobs = random_jobs(Kernel::k_apply_signs, sizes, options, memory);
  auto job = job_in<device::ApplySigns>(jobs);
  const auto x = at(static_cast<float*>(job.x.data), 0, kPeriod);
  device_->launch(jobs.launch(Kernel::k_apply_signs));
  for (const std::size_t block : blocks()) {
    const std::size_t word = block * kPeriod / 64;
    const auto positive = at(job.positive, word, kPeriod / 64);
    auto nonzero = positive;
    if (job.nonzero != nullptr) nonzero = at(job.nonzero, word, kPeriod / 64);
    auto expected = x;
    device::ApplySigns on_host = job;
    on_host.positive = positive.data();
    on_host.nonzero = job.nonzero != nullptr ? nonzero.data() : nullptr;
    on_host.x.data = expected.data();
    on_host.n = kPeriod;
    for (std::size_t i = 0; i < kPeriod; i += kChunk) device::apply_signs(on_host, i);
    EXPECT_EQ(at(static_cast<float*>(job.x.data), block * kPeriod, kPeriod), expected)
        << "block " << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, LargeTensor, testing::ValuesIn(machines()),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace pride
