// cuda_report() and cuda_device() as a user calls them, with the fakes for CUDA's libraries.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "device/cuda/machine.h"
#include "pride/device.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

namespace fs = std::filesystem;

// One test: a process keeps the libraries that it has found.
TEST(Cuda, IsReportedAndUsedOnceItIsThere) {
  const fs::path cache = fs::temp_directory_path() / concat("pride-report-", ::getpid());
  setenv("PRIDE_CACHE", cache.c_str(), 1);
  setenv("PRIDE_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
  setenv("PRIDE_NVRTC", "/nowhere/libnvrtc.so", 1);
  const CudaReport none = cuda_report();
  EXPECT_TRUE(none.gpus.empty());
  EXPECT_EQ(none.driver, "");
  EXPECT_EQ(none.nvrtc, "");
  EXPECT_EQ(none.cache, cache.string());
  EXPECT_TRUE(none.reason.starts_with("cannot load /nowhere/libcuda.so.1: ")) << none.reason;
  EXPECT_NE(none.reason.find("no NVRTC"), std::string::npos) << none.reason;
  EXPECT_THROW(cuda_device(0), InvalidArgument);

  setenv("PRIDE_CUDA_DRIVER", beside_this_program(PRIDE_FAKE_CUDA).c_str(), 1);
  const CudaReport half = cuda_report();
  EXPECT_EQ(half.gpus.size(), 2U);
  EXPECT_TRUE(half.reason.starts_with("no NVRTC")) << half.reason;
  EXPECT_THROW(cuda_device(0), InvalidArgument);

  const std::string nvrtc = beside_this_program(PRIDE_FAKE_NVRTC);
  setenv("PRIDE_NVRTC", nvrtc.c_str(), 1);
  const CudaReport all = cuda_report();
  ASSERT_EQ(all.gpus.size(), 2U);
  EXPECT_EQ(all.gpus[1].number, 1);
  EXPECT_EQ(all.gpus[1].name, "Fake B");
  EXPECT_EQ(all.gpus[1].architecture, "sm_90");
  EXPECT_EQ(all.gpus[1].bytes, std::uint64_t{1} << 34);
  EXPECT_EQ(all.driver, "13.1");
  EXPECT_EQ(all.nvrtc, nvrtc + ", version 13.1");
  EXPECT_EQ(all.reason, "");

  // kernels that cannot be loaded, run or trusted
  const std::string who = " (sm_90, NVRTC 13.1, driver of CUDA 13.1)";
  fake().fail("cuModuleLoadData", 222, 0);
  texts::expect_error<InvalidArgument>(
      [] { cuda_device(1); }, {"no NVRTC for CUDA 13.1 or older", nvrtc, "refuses the kernels: "});
  for (const char* call : {"cuModuleLoadData", "cuMemAllocAsync", "cuLaunchKernel"}) {
    fake().fail(call, 2, 0);
    texts::expect_error<OutOfMemory>([] { cuda_device(1); },
                                     {"cuda:1 (Fake B)", concat(call, " failed: ")});
  }
  fake().fail("cuStreamCreateWithPriority", 400, 0);
  texts::expect_error<InvalidArgument>(
      [] { cuda_device(1); },
      {"cuda:1 (Fake B): cuStreamCreateWithPriority failed: ", " (sm_90, driver of CUDA 13.1)"});
  fake().fail("cuLaunchKernel", 400, 0);
  texts::expect_error<InvalidArgument>(
      [] { cuda_device(1); }, {"cuda:1 (Fake B), kernel ", ": cuLaunchKernel failed: ", who});
  fake().crash("sum");
  texts::expect_error<InvalidArgument>([] { cuda_device(1); },
                                       {"cuda:1 (Fake B)", "CUDA_ERROR_ILLEGAL_ADDRESS", who});
  fake().crash("");
  fake().wrong("lion_signs");
  texts::expect_error<InvalidArgument>(
      [] { cuda_device(1); },
      {"cuda:1 (Fake B): kernel lion_signs gives other bits than the host, from byte 0 of ", who});
  const CudaReport wrong = cuda_report(true);
  EXPECT_NE(wrong.reason.find("cuda:0 (Fake A): kernel lion_signs"), std::string::npos);
  EXPECT_NE(wrong.lines().back().second.find("off: cuda:0"), std::string::npos);
  EXPECT_EQ(cuda_report().reason, "") << "runs no kernel";
  fake().wrong("");
  EXPECT_EQ(cuda_report(true).lines().back(),
            std::pair(std::string("GPU path"), std::string("on")));
  fake().fail("cuModuleLoadData", 2, 0);
  const CudaReport full = cuda_report(true);
  EXPECT_EQ(full.reason, "") << "optimizers may run there";
  EXPECT_TRUE(full.unchecked.starts_with("cuda:0 (Fake A)")) << full.unchecked;
  EXPECT_EQ(full.lines().back().second, "not checked, no memory now: " + full.unchecked);

  // the NVRTC of the kernels, not the one that was found first
  const fs::path toolkit = cache / "toolkit";
  fs::create_directories(toolkit / "lib64");
  fs::copy_file(nvrtc, toolkit / "lib64" / "libnvrtc.so.13");
  unsetenv("PRIDE_NVRTC");
  setenv("CUDA_HOME", toolkit.c_str(), 1);
  EXPECT_EQ(cuda_report(true).nvrtc,
            (toolkit / "lib64" / "libnvrtc.so.13").string() + ", version 13.1");
  setenv("PRIDE_NVRTC", nvrtc.c_str(), 1);

  const auto device = cuda_device(1);
  EXPECT_EQ(device->name(), "cuda:1 (Fake B)");
  EXPECT_EQ(device->warning(), "");
  EXPECT_FALSE(fs::is_empty(cache));
  EXPECT_NE(device->stream(), cuda_device(1)->stream());
  EXPECT_THROW(cuda_device(2), InvalidArgument);
  fs::remove_all(cache);
}

}  // namespace
}  // namespace pride
