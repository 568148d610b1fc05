// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_image.h"

#include <fstream>
#include <map>
#include <mutex>

#include "device/kernel_cache.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::cuda {
namespace {

struct Images {
  std::mutex mutex;  // guards the rest; held while an image is compiled
  std::map<std::uint64_t, std::shared_ptr<const std::string>> of_process;
  bool warned = false;
};

Images& images() {
  static Images instance;
  return instance;
}

// A failure's text also names the file in the folder that has the compiler's whole log.
std::string compiled(const Nvrtc& nvrtc, const std::string& source, const Target& target,
                     const std::filesystem::path& folder) try {
  return nvrtc.compile(source, target);
} catch (const CompileFailure& failure) {
  const std::filesystem::path file = folder / "nvrtc.log";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (folder.empty() || !(std::ofstream(file) << failure.log << std::flush)) throw;
  throw CompileFailure(concat(failure.what(), "; the whole log: ", file.string()), failure.log);
}

}  // namespace

std::string kernel_source() {
  return concat("#line 1 \"lanes.h\"\n", kLanes, "#line 1 \"rule_bodies.h\"\n", kRuleBodies,
                "#line 1 \"scale_bodies.h\"\n", kScaleBodies, "#line 1 \"level_bodies.h\"\n",
                kLevelBodies, "#line 1 \"bodies.h\"\n", kBodies);
}

std::uint64_t image_key(const Nvrtc& nvrtc, int chip, const std::string& source) {
  const Target target = nvrtc.target_of(chip);
  Digest digest;
  digest.text(source).text(nvrtc.version()).number(static_cast<std::uint64_t>(chip));
  for (const std::string& option : Nvrtc::options(target)) digest.text(option);
  return digest.value();
}

KernelImage kernel_image(const Nvrtc& nvrtc, int chip, const std::string& source,
                         const std::filesystem::path& folder) {
  const std::uint64_t key = image_key(nvrtc, chip, source);
  const std::lock_guard lock(images().mutex);
  auto& kept = images().of_process[key];
  KernelImage image{.bytes = kept, .target = nvrtc.target_of(chip), .warning = {}};
  if (kept != nullptr) return image;
  if (auto cached = read_cached(folder, key)) {
    image.bytes = std::make_shared<const std::string>(std::move(*cached));
  } else {
    image.bytes =
        std::make_shared<const std::string>(compiled(nvrtc, source, image.target, folder));
    image.warning = write_cached(folder, key, *image.bytes);
    if (images().warned) image.warning.clear();
    images().warned = images().warned || !image.warning.empty();
  }
  kept = image.bytes;
  return image;
}

}  // namespace pride::cuda
