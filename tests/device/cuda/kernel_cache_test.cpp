// Compiled kernels in a folder, with a fake NVRTC that counts how often it compiles.
// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "device/cuda/machine.h"
#include "device/kernel_image.h"
#include "pride/error.h"
#include "support/texts.h"

namespace pride {
namespace {

namespace fs = std::filesystem;

int compiled() {
  static const Library library(beside_this_program(PRIDE_FAKE_NVRTC));
  return reinterpret_cast<int (*)()>(library.get("fake_nvrtc_compiled"))();
}

class KernelCache : public testing::Test {
 protected:
  KernelCache() : folder_(fs::temp_directory_path() / concat("pride-cache-", ::getpid())) {
    fs::remove_all(folder_);
  }
  ~KernelCache() override { fs::remove_all(folder_); }

  // Each test has sources of its own: the process keeps what it has compiled.
  static std::string new_source() {
    static int n = 0;
    return concat("source ", ++n);
  }
  std::vector<fs::path> files() {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path());
    return all;
  }
  cuda::KernelImage image(const std::string& source, int chip = 90) {
    return cuda::kernel_image(nvrtc_, chip, source, folder_);
  }

  const fs::path folder_;
  const cuda::Nvrtc nvrtc_{beside_this_program(PRIDE_FAKE_NVRTC)};
};

TEST_F(KernelCache, KeepsWhatWasCompiled) {
  const std::string source = new_source();
  const int before = compiled();
  const auto first = image(source);
  EXPECT_EQ(first.warning, "");
  EXPECT_EQ(compiled(), before + 1);
  const std::uint64_t key = cuda::image_key(nvrtc_, 90, source);
  EXPECT_EQ(files(), std::vector{cuda::cache_file(folder_, key)});
  EXPECT_EQ(cuda::read_cached(folder_, key), *first.bytes);
  EXPECT_EQ(*image(source).bytes, *first.bytes);
  EXPECT_EQ(compiled(), before + 1);
}

TEST_F(KernelCache, TakesWhatAnotherProcessKept) {
  const std::string source = new_source();
  const std::uint64_t key = cuda::image_key(nvrtc_, 90, source);
  ASSERT_EQ(cuda::write_cached(folder_, key, "fake, of another process"), "");
  const int before = compiled();
  EXPECT_EQ(*image(source).bytes, "fake, of another process");
  EXPECT_EQ(compiled(), before);
}

TEST_F(KernelCache, HasAKeyForEachSourceAndChip) {
  const std::string source = new_source();
  const std::uint64_t key = cuda::image_key(nvrtc_, 90, source);
  EXPECT_NE(cuda::image_key(nvrtc_, 80, source), key);
  EXPECT_NE(cuda::image_key(nvrtc_, 100, source), key);
  EXPECT_NE(cuda::image_key(nvrtc_, 90, source + " "), key);
  EXPECT_EQ(cuda::image_key(nvrtc_, 90, source), key);
}

TEST_F(KernelCache, CompilesAnewWhereAFileIsDamagedOrForeign) {
  const std::string good = "fake kernels of some length";
  const auto damage = [&](const fs::path& file, int how) {
    if (how == 0) fs::resize_file(file, fs::file_size(file) - 1);
    if (how == 1) fs::resize_file(file, 7);
    if (how == 2) std::ofstream(file) << "a text of somebody else, longer than the head of a file";
    if (how == 3)
      fs::copy_file(cuda::cache_file(folder_, 1), file, fs::copy_options::overwrite_existing);
    if (how < 4) return;
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(how == 4 ? 40 : 8);
    out.put('#');
  };
  ASSERT_EQ(cuda::write_cached(folder_, 1, good), "");
  for (int how = 0; how < 6; ++how) {
    const std::string source = new_source();
    const std::uint64_t key = cuda::image_key(nvrtc_, 90, source);
    ASSERT_EQ(cuda::write_cached(folder_, key, good), "");
    ASSERT_EQ(cuda::read_cached(folder_, key), good);
    damage(cuda::cache_file(folder_, key), how);
    EXPECT_EQ(cuda::read_cached(folder_, key), std::nullopt) << how;
    const int before = compiled();
    const auto anew = image(source);
    EXPECT_EQ(compiled(), before + 1) << how;
    EXPECT_EQ(cuda::read_cached(folder_, key), *anew.bytes) << how;
  }
}

TEST_F(KernelCache, WarnsOnceOfAFolderThatCannotBeWritten) {
  std::ofstream(folder_.string()) << "a file in the place of the folder";
  const auto first = image(new_source()), second = image(new_source());
  EXPECT_TRUE(first.warning.starts_with(concat("cannot write ", folder_.string(), ": ")))
      << first.warning;
  EXPECT_EQ(second.warning, "");
  EXPECT_TRUE(second.bytes->starts_with("fake"));
}

TEST_F(KernelCache, KeepsTheLogOfACompilationThatFailed) {
  const std::string error = texts::error_of<InvalidArgument>([&] { image("#error"); });
  EXPECT_TRUE(error.ends_with(concat("the whole log: ", (folder_ / "nvrtc.log").string())))
      << error;
  std::ifstream file(folder_ / "nvrtc.log");
  const std::string log((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(log.ends_with("bodies.h(8): error")) << log;
}

TEST_F(KernelCache, LeavesNoUnfinishedFile) {
  fs::create_directories(cuda::cache_file(folder_, 7) / "in the way");
  EXPECT_TRUE(cuda::write_cached(folder_, 7, "fake").starts_with("cannot write "));
  EXPECT_EQ(files(), std::vector{cuda::cache_file(folder_, 7)});
  EXPECT_EQ(cuda::read_cached(folder_, 7), std::nullopt);
}

TEST_F(KernelCache, ThreadsCompileOnce) {
  const std::string source = new_source();
  const int before = compiled();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { image(source); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled(), before + 1);
}

TEST_F(KernelCache, FollowsTheEnvironment) {
  const auto set = [](const char* name, const char* value) {
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  };
  const char* const old = std::getenv("HOME");
  const std::string home = old != nullptr ? old : "";
  set("PRIDE_CACHE", "/a");
  set("XDG_CACHE_HOME", "/b");
  set("HOME", "/c");
  EXPECT_EQ(cuda::cache_folder(), "/a");
  set("PRIDE_CACHE", nullptr);
  EXPECT_EQ(cuda::cache_folder(), "/b/pride");
  set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(cuda::cache_folder(), "/c/.cache/pride");
  set("XDG_CACHE_HOME", nullptr);
  set("HOME", nullptr);
  EXPECT_EQ(cuda::cache_folder(), "");
  EXPECT_TRUE(cuda::write_cached("", 1, "fake").starts_with("no cache folder"));
  set("HOME", home.empty() ? nullptr : home.c_str());
}

}  // namespace
}  // namespace pride
