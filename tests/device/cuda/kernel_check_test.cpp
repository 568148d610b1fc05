// The check of a device's kernels before they are trusted, on the fake driver and a GPU.
// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "device/cuda/machine.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

namespace fs = std::filesystem;

class WrongKernel {  // for as long as it lives
 public:
  explicit WrongKernel(const char* name) { fake().wrong(name); }
  ~WrongKernel() { fake().wrong(""); }
  WrongKernel(const WrongKernel&) = delete;
  WrongKernel& operator=(const WrongKernel&) = delete;
};

class KernelCheck : public testing::TestWithParam<const char*> {};

TEST_P(KernelCheck, FindsNothingWrong) {
  const auto device = device_on(GetParam());
  EXPECT_EQ(wrong_kernel(*device), "");
}

INSTANTIATE_TEST_SUITE_P(Machines, KernelCheck, testing::ValuesIn(machines()),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(FakeKernelCheck, LaunchesEachKernelOnceAndKeepsNothing) {
  const auto device = device_on("fake");
  wrong_kernel(*device);  // makes the ring of jobs
  const FakeCudaState before = fake().now();
  wrong_kernel(*device);
  const FakeCudaState after = fake().now();
  EXPECT_EQ(after.launches, before.launches + static_cast<int>(device::kKernels));
  EXPECT_EQ(after.device_blocks, before.device_blocks);
}

TEST(FakeKernelCheck, NamesTheWrongKernel) {
  const auto device = device_on("fake");
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const char* const name = name_of(static_cast<device::Kernel>(k));
    const WrongKernel wrong(name);
    const std::string found = wrong_kernel(*device);
    EXPECT_TRUE(found.starts_with(concat("kernel ", name, " gives other bits than the host")))
        << name << ": " << found;
  }
}

TEST(FakeKernelCheck, ACrashIsAnError) {
  fake().crash("adamw");
  texts::expect_error<Error>([] { wrong_kernel(*device_on("fake")); },
                             {"CUDA_ERROR_ILLEGAL_ADDRESS"});
  fake().crash("");
  EXPECT_EQ(wrong_kernel(*device_on("fake")), "");
}

TEST(FakeKernelCheck, ANanMayHaveOtherBitsInFloatsAlone) {
  const auto device = device_on("fake");
  fake().change([](unsigned word) { return word == 0xFFC01234U; });  // the NaN among gradients
  EXPECT_EQ(wrong_kernel(*device), "");
  fake().change([](unsigned word) { return (word & 0x7FFFFFFFU) > 0x7F800001U; });
  EXPECT_NE(wrong_kernel(*device), "") << "words of signs, counts and halves";
  fake().change(nullptr);
}

TEST(FakeKernelCheck, OnlyAGoodVerdictIsKept) {
  const fs::path folder = fs::temp_directory_path() / concat("pride-verdicts-", ::getpid());
  const auto device = device_on("fake");
  const std::uint64_t key = 12345;
  {
    const WrongKernel wrong("adamw");
    EXPECT_NE(kernel_verdict(*device, key, folder), "");
    EXPECT_FALSE(fs::exists(folder));
  }
  EXPECT_EQ(kernel_verdict(*device, key, folder), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  const WrongKernel wrong("adamw");
  EXPECT_EQ(kernel_verdict(*device, key, {}), "") << "the process has it";
  EXPECT_NE(kernel_verdict(*device, key + 1, folder), "") << "another chip, driver or image";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace pride
