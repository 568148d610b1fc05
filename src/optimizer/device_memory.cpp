// Whether a device has memory for an optimizer, before all ranks make theirs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>

#include "device/device.h"
#include "optimizer/section.h"
#include "pride/error.h"
#include "pride/registry.h"

namespace pride {
namespace {

// Bytes that a section takes on the device: state for all coordinates, frames for those of a
// bucket, their decoded means, and a direction where matrices or local steps need one.
double bytes_on_device(const Section& section, std::size_t bucket_coords, int workers) {
  const MethodInfo& info = section.info;
  const auto coords = static_cast<double>(section.layout.flat_size());
  const double bucket = std::min(coords, static_cast<double>(bucket_coords));
  const bool directs =
      info.period > 1 || matrix_operations(section.method, section.layout,
                                           {.options = section.options, .world = 1}) > 0;
  const auto dense = section.options.find("dense");
  const bool decodes = dense != section.options.end() && dense->second.starts_with("int");
  const double frames =
      ((info.link_bits_up + info.link_bits_down) / 8 + (decodes ? sizeof(float) : 0)) * bucket;
  const double state = state_of(section.method, section.layout, section.options).bytes;
  return coords * (state * std::max(1, workers) + (directs ? sizeof(float) : 0)) + frames;
}

}  // namespace

void check_device_memory(const Layout& layout, const OptimizerOptions& options,
                         std::uint64_t master_bytes, int workers) {
  PRIDE_CHECK(options.device, "check_device_memory: the options name no device");
  Device& device = *options.device;
  auto bytes = static_cast<double>(master_bytes);
  for (const Section& section : Sections(layout, options, 1)) {
    bytes += bytes_on_device(section, options.bucket_coords, workers);
  }
  device.free(device.allocate(static_cast<std::size_t>(std::ceil(bytes))));
}

}  // namespace pride
