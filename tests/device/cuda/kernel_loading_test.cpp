// The choice among several NVRTCs, by fakes of NVRTC and of the driver.
// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_loading.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "device/cuda/machine.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

namespace fs = std::filesystem;

class KernelLoading : public testing::Test {
 protected:
  KernelLoading() : folder_(fs::temp_directory_path() / concat("pride-loading-", ::getpid())) {
    setenv("PRIDE_CACHE", folder_.c_str(), 1);
  }
  ~KernelLoading() override {
    unsetenv("PRIDE_CACHE");
    fs::remove_all(folder_);
  }
  static cuda::LoadedDevice load(const std::vector<std::string>& candidates) {
    return cuda::load_device(fake().driver, 0, candidates);
  }

  const std::string nvrtc_ = beside_this_program(PRIDE_FAKE_NVRTC);
  const fs::path folder_;
};

TEST_F(KernelLoading, TakesTheNextNvrtcWhereTheDriverRefusesItsKernels) {
  for (const int refusal : {200, 209, 222}) {
    fake().fail("cuModuleLoadData", refusal, 0);
    const cuda::LoadedDevice loaded = load({"/nowhere/libnvrtc.so.13", nvrtc_, nvrtc_});
    EXPECT_EQ(loaded.device->name(), "cuda:0 (Fake A)") << refusal;
    EXPECT_EQ(loaded.nvrtc->path(), nvrtc_);
    EXPECT_EQ(loaded.image.target.option(), "sm_90");
  }
}

TEST_F(KernelLoading, NamesBothVersionsWhereNoneWillDo) {
  fake().fail("cuModuleLoadData", 222, 0);
  texts::expect_error<InvalidArgument>(
      [&] {
        load({"/nowhere/libnvrtc.so.13", nvrtc_});
      },
      {"no NVRTC for CUDA 13.1 or older", "\n  cannot load /nowhere/libnvrtc.so.13: ",
       concat("\n  kernels of NVRTC 13.1, ", nvrtc_,
              ": cuda:0 (Fake A): the driver, of CUDA 13.1, refuses the kernels: "
              "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")});
}

// Two builds may have one version of CUDA, and compile the same PTX to other code.
TEST_F(KernelLoading, AnotherBuildOfTheDriverHasAnotherVerdict) {
  const cuda::LoadedDevice loaded = load({nvrtc_});
  const fs::path older = folder_ / "older", newer = folder_ / "newer";
  for (const auto& [folder, file] :
       {std::pair(older, "libcuda.so.580.65"), std::pair(newer, "libcuda.so.580.159")}) {
    fs::create_directories(folder);
    fs::copy_file(fake().driver.path(), folder / file);
    fs::create_symlink(file, folder / "libcuda.so.1");
  }
  const cuda::Driver one((older / "libcuda.so.1").string()),
      other((newer / "libcuda.so.1").string());
  EXPECT_EQ(one.version(), other.version());
  EXPECT_NE(one.build().find("libcuda.so.580.65"), std::string::npos) << one.build();
  EXPECT_NE(verdict_key(loaded, one, 90), verdict_key(loaded, other, 90));
  EXPECT_EQ(verdict_key(loaded, one, 90), verdict_key(loaded, one, 90));
}

TEST_F(KernelLoading, OtherFailuresAreNotOfNvrtc) {
  fake().fail("cuModuleLoadData", 2, 0);
  texts::expect_error<Error>(
      [&] {
        load({nvrtc_, nvrtc_});
      },
      {"cuModuleLoadData failed: CUDA_ERROR_OUT_OF_MEMORY"});
}

}  // namespace
}  // namespace pride
