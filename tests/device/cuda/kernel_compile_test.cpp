// Every kernel compiles for the chips in use, by the NVRTC of this machine, and keeps its values in
// registers.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>

#include "device/cuda/cubin.h"
#include "device/device.h"
#include "device/kernel_image.h"
#include "pride/digest.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

constexpr std::array<int, 5> kChips = {75, 80, 90, 100, 120};
// of 256 threads, as often on a multiprocessor as device::blocks_of says
std::uint32_t most_registers(std::string_view kernel) {
  return kernel == "pride_compress" ? 128 : 80;
}

const std::shared_ptr<const cuda::Nvrtc>& nvrtc_here() {
  static const auto found = []() -> std::shared_ptr<const cuda::Nvrtc> {
    try {
      return cuda::find_nvrtc();
    } catch (const InvalidArgument&) {
      return nullptr;
    }
  }();
  return found;
}

// Of what Kernels.* compiles, how, and its limits: scripts/nvrtc.sh keeps it with what passed.
std::uint64_t digest_of(const std::string& source) {
  Digest digest;
  digest.text(source);
  for (const int chip : kChips) {
    for (const bool ptx : {false, true}) {
      for (const auto& option : cuda::Nvrtc::options({.architecture = chip, .ptx = ptx})) {
        digest.text(option);
      }
    }
  }
  for (std::size_t k = 0; k < device::kKernels; ++k) {
    const std::string name = concat("pride_", name_of(static_cast<device::Kernel>(k)));
    digest.text(name).number(most_registers(name));
  }
  return digest.value();
}

TEST(KernelSource, HasADigestOfItsOwn) {
  const std::uint64_t digest = digest_of(cuda::kernel_source());
  EXPECT_NE(digest, digest_of(cuda::kernel_source() + " "));
  std::cout << "kernel source " << digest << '\n';
}

TEST(Kernels, CompileForEveryChipWithoutSpills) {
  if (!nvrtc_here()) GTEST_SKIP() << "no NVRTC here";
  std::map<std::string, std::string> table;
  for (const int chip : kChips) {
    const cuda::Target target = nvrtc_here()->target_of(chip);
    if (target.ptx) continue;  // NVRTC is older than the chip
    const auto facts = facts_of(nvrtc_here()->compile(cuda::kernel_source(), target));
    for (std::size_t k = 0; k < device::kKernels; ++k) {
      const std::string name = concat("pride_", name_of(static_cast<device::Kernel>(k)));
      ASSERT_TRUE(facts.contains(name)) << name << " for sm_" << chip;
      const KernelFacts& kernel = facts.at(name);
      EXPECT_GT(kernel.code, 0U) << name << " for sm_" << chip;
      EXPECT_GT(kernel.registers, 0U) << name << " for sm_" << chip;
      EXPECT_LE(kernel.registers, most_registers(name)) << name << " for sm_" << chip;
      EXPECT_EQ(kernel.frame, 0U) << name << " for sm_" << chip;
      EXPECT_EQ(kernel.stack, 0U) << name << " for sm_" << chip;
      table[name] += concat(" ", std::setw(6), kernel.registers);
    }
  }
  std::cout << "registers by NVRTC " << nvrtc_here()->version() << " for sm_75, 80, 90, 100, 120\n";
  for (const auto& [name, counts] : table) {
    std::cout << std::left << std::setw(24) << name << counts << '\n';
  }
}

TEST(Kernels, CompileToPtxForAYoungerChip) {
  if (!nvrtc_here()) GTEST_SKIP() << "no NVRTC here";
  const cuda::Target target = nvrtc_here()->target_of(999);
  EXPECT_TRUE(target.ptx);
  EXPECT_EQ(target.architecture, nvrtc_here()->architectures().back());
  const std::string ptx = nvrtc_here()->compile(cuda::kernel_source(), target);
  EXPECT_NE(ptx.find(".entry pride_lion_signs("), std::string::npos);
  // a product and a sum that were one instruction would not be the host's bits
  EXPECT_EQ(ptx.find("fma.rn.f32"), std::string::npos);
  EXPECT_EQ(ptx.find("fma.rn.f64"), std::string::npos);
}

TEST(Kernels, AFaultInTheSourceIsNamedWithItsLine) {
  if (!nvrtc_here()) GTEST_SKIP() << "no NVRTC here";
  const cuda::Target target = nvrtc_here()->target_of(nvrtc_here()->architectures().back());
  texts::expect_error<InvalidArgument>(
      [&] {
        nvrtc_here()->compile("#line 1 \"bodies.h\"\n__global__ void f() {\n  unknown();\n}\n",
                              target);
      },
      {"bodies.h(2): error", "NVRTC_ERROR_COMPILATION"});
}

}  // namespace
}  // namespace pride
