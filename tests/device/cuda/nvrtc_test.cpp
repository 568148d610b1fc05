// The search for NVRTC in folders made up by the test, and compiling with a fake one.
// SPDX-License-Identifier: Apache-2.0
#include "device/nvrtc.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "device/cuda/machine.h"
#include "device/cuda_driver.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

namespace fs = std::filesystem;

// An environment variable for the time of a test; null: not set.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string old_;
};

class NvrtcSearch : public testing::Test {
 protected:
  NvrtcSearch()
      : folder_(fs::temp_directory_path() / concat("pride-nvrtc-", ::getpid())),
        named_("PRIDE_NVRTC", nullptr),
        home_("CUDA_HOME", (folder_ / "toolkit").c_str()),
        path_("CUDA_PATH", nullptr) {}
  ~NvrtcSearch() override { fs::remove_all(folder_); }

  std::string file(const fs::path& below) {
    const fs::path path = folder_ / below;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "no library";
    return path.string();
  }

  // Candidates in the folders of the test.
  std::vector<std::string> found(const std::vector<std::string>& loaded) {
    std::vector<std::string> all = cuda::nvrtc_candidates(loaded);
    std::erase_if(all, [&](const std::string& c) { return !c.starts_with(folder_.string()); });
    return all;
  }

  const fs::path folder_;

 private:
  Variable named_, home_, path_;
};

TEST_F(NvrtcSearch, TakesTheLoadedOneThenTorchsThenAToolkits) {
  const std::string toolkit = file("toolkit/lib64/libnvrtc.so.13");
  const std::string torch = file("site-packages/torch/lib/libtorch_cuda.so");
  const std::string old_wheel = file("site-packages/torch/lib/libnvrtc-672ee683.so.11.2");
  const std::string cuda12 = file("site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  const std::string cuda13 = file("site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  file("site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0");
  file("site-packages/nvidia/cu13/lib/libnvrtc.alt.so.13");
  file("toolkit/lib64/libnvrtc-builtins.so.13.0");
  const std::string loaded = file("elsewhere/libnvrtc.so.12");
  using List = std::vector<std::string>;
  EXPECT_EQ(found({"/lib/libc.so.6", loaded, torch}),
            (List{loaded, old_wheel, cuda12, cuda13, toolkit}));
  EXPECT_EQ(found({}), List{toolkit});
}

TEST_F(NvrtcSearch, EndsWithTheNamesOfTheSystem) {
  const auto all = cuda::nvrtc_candidates({});
  EXPECT_EQ(all.back(), "libnvrtc.so");
  EXPECT_NE(std::ranges::find(all, "libnvrtc.so.12"), all.end());
}

TEST_F(NvrtcSearch, TakesTheNamedOneAlone) {
  file("toolkit/lib64/libnvrtc.so.13");
  const std::string mine = beside_this_program(PRIDE_FAKE_NVRTC);
  const Variable named("PRIDE_NVRTC", mine.c_str());
  EXPECT_EQ(cuda::find_nvrtc()->path(), mine);
  EXPECT_EQ(cuda::find_nvrtc()->version(), "13.1");
  const Variable missing("PRIDE_NVRTC", "/nowhere/libnvrtc.so");
  EXPECT_THROW(cuda::find_nvrtc(), InvalidArgument);
}

TEST_F(NvrtcSearch, SaysWhatItTriedAndWhatToInstall) {
  const std::string broken = file("libnvrtc.so.13"), other = beside_this_program(PRIDE_FAKE_CUDA);
  for (const std::string& library : {broken, other}) {
    const Variable named("PRIDE_NVRTC", library.c_str());
    texts::expect_error<InvalidArgument>([&] { cuda::find_nvrtc(); },
                                         {"nvidia-cuda-nvrtc", library});
  }
}

TEST(Nvrtc, KnowsWhatToCompileForAChip) {
  const cuda::Nvrtc nvrtc(beside_this_program(PRIDE_FAKE_NVRTC));
  EXPECT_EQ(nvrtc.target_of(80).option(), "sm_80");
  EXPECT_EQ(nvrtc.target_of(86).option(), "compute_80");
  EXPECT_EQ(nvrtc.target_of(101).option(), "sm_101");
  EXPECT_EQ(nvrtc.target_of(103).option(), "compute_100");
  EXPECT_EQ(nvrtc.target_of(120).option(), "compute_100");
  EXPECT_THROW(nvrtc.target_of(61), InvalidArgument);
}

TEST(Nvrtc, GivesItsFirstErrorWhereCompilingFails) {
  const cuda::Nvrtc nvrtc(beside_this_program(PRIDE_FAKE_NVRTC));
  const std::string error =
      texts::error_of<InvalidArgument>([&] { nvrtc.compile("#error", nvrtc.target_of(80)); });
  EXPECT_EQ(error, nvrtc.path() +
                       ": NVRTC 13.1 does not compile the kernels for sm_80: "
                       "NVRTC_ERROR_COMPILATION, bodies.h(7): error: planned");
}

TEST(CudaDriver, SaysWhatIsMissing) {
  const auto error_of = [](const std::string& library) {
    return texts::error_of<InvalidArgument>([&] { cuda::Driver driver(library); });
  };
  EXPECT_TRUE(error_of("/nowhere/libcuda.so.1").starts_with("cannot load /nowhere/libcuda.so.1: "));
  const std::string other = beside_this_program(PRIDE_FAKE_NVRTC);
  EXPECT_EQ(error_of(other), other + " has no function cuInit");
  const std::string driver = fake().driver.path();
  fake().machine(0, 1);
  EXPECT_EQ(error_of(driver), driver + ": cuInit failed: CUDA_ERROR_NO_DEVICE");
  fake().machine(2, 1);
  EXPECT_EQ(error_of(driver), "");
}

}  // namespace
}  // namespace pride
