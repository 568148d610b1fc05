// Whether a device has memory for an optimizer, before all ranks make theirs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>

#include "device/device.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "pride/replica.h"

namespace pride {
namespace {

// Bytes that the method takes on the device: state and masters for all coordinates, frames for
// those of a bucket, and a direction where matrices or local steps need one.
double bytes_on_device(const Layout& layout, const OptimizerOptions& options,
                       std::uint64_t master_bytes, int workers) {
  const MethodInfo info = method_info(options.method, 1, options.options);
  const auto coords = static_cast<double>(layout.flat_size());
  const double bucket = std::min(coords, static_cast<double>(options.bucket_coords));
  const bool directs =
      info.period > 1 ||
      matrix_operations(options.method, layout, {.options = options.options, .world = 1}) > 0;
  const double frames = (info.link_bits_up + info.link_bits_down) / 8 * bucket;
  return coords * state_of(options.method, layout, options.options).bytes * std::max(1, workers) +
         static_cast<double>(master_bytes) + (directs ? sizeof(float) * coords : 0) + frames;
}

}  // namespace

void check_device_memory(const Layout& layout, const OptimizerOptions& options,
                         std::uint64_t master_bytes, int workers) {
  PRIDE_CHECK(options.device, "check_device_memory: the options name no device");
  Device& device = *options.device;
  const double bytes = std::ceil(bytes_on_device(layout, options, master_bytes, workers));
  device.free(device.allocate(static_cast<std::size_t>(bytes)));
}

}  // namespace pride
