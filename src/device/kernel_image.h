// The kernels of bodies.h, compiled for a GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "device/nvrtc.h"

namespace pride::cuda {

// The texts of lanes.h, rule_bodies.h, scale_bodies.h, level_bodies.h and bodies.h.
extern const char *const kLanes, *const kRuleBodies, *const kScaleBodies, *const kLevelBodies,
                                                                              *const kBodies;
std::string kernel_source();  // all, as one source

struct KernelImage {
  std::shared_ptr<const std::string> bytes;  // a cubin or PTX
  Target target;
  std::string warning;  // why the image could not be cached; once in a process
};

std::uint64_t image_key(const Nvrtc& nvrtc, int chip, const std::string& source);

// The image that this process or the folder has; otherwise it is compiled and kept in both. Threads
// may call this at once: one of them compiles. Throws as Nvrtc does.
KernelImage kernel_image(const Nvrtc& nvrtc, int chip, const std::string& source,
                         const std::filesystem::path& folder);

}  // namespace pride::cuda
