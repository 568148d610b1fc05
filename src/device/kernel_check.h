// Whether a device's kernels can be trusted: their bits beside the host's, for the same jobs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "device/device.h"

namespace pride {

// Runs every kernel in a launch, on small tensors of awkward sizes with zeros, denormals and values
// that are not finite; all have one copy in, one out and one wait. Returns "", or the first kernel
// whose bits are not those of the host, and where. Two NaNs of float32 count as equal. Throws as
// the device does.
std::string wrong_kernel(Device& device);

// "" if that was the result under this key before, in this process or with this folder; otherwise
// wrong_kernel(). Threads may call this at once: one of them runs kernels.
std::string kernel_verdict(Device& device, std::uint64_t key, const std::filesystem::path& folder);

}  // namespace pride
