// Devices of the C interface.
// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"
#include "c/handles.h"

using namespace pride::c;

int pride_cuda_device(int32_t number, pride_device** out) {
  return guarded([&] {
    given(out, "out") = nullptr;
    auto device = pride::cuda_device(number);
    std::string name = device->name();
    *out = new pride_device{std::move(device), std::move(name)};
  });
}

void pride_device_destroy(pride_device* device) { delete device; }

const char* pride_device_name(const pride_device* device) {
  return device == nullptr ? "" : device->name.c_str();
}

int pride_device_set_make_room(pride_device* device, pride_make_room function, void* user) {
  return guarded([&] {
    pride::Device& full = *given(device, "device").device;
    if (function == nullptr) return pride::set_make_room(full, nullptr);
    pride::set_make_room(full, [function, user] { function(user); });
  });
}

int pride_cuda_report(const char** text) {
  return guarded([&] {
    thread_local std::string lines;
    lines.clear();
    for (const auto& [label, value] : pride::cuda_report(true).lines()) {
      lines += pride::concat(label, ": ", value, "\n");
    }
    given(text, "text") = lines.c_str();
  });
}

int pride_device_rates(pride_device* device, uint64_t bytes, double seconds, double* memory,
                       double* link) {
  return guarded([&] {
    constexpr int kLeast = 3;
    pride::Device& measured = *given(device, "device").device;
    given(memory, "memory") = given(link, "link") = 0;
    const pride::CopyRates rates = pride::measure_copies(measured, bytes, seconds, kLeast);
    *memory = rates.memory;
    *link = rates.link();
  });
}

namespace pride::c {
namespace {

constexpr std::size_t kMostText = 512;

}  // namespace

Orthogonalise orthogonalise_of(pride_orthogonalise function, void* user) {
  if (function == nullptr) return nullptr;
  return [function, user](const DeviceMatrices& m, void* stream) {
    const pride_matrices matrices{.data = m.data.data(),
                                  .n = m.data.size(),
                                  .rows = m.rows,
                                  .cols = m.cols,
                                  .stride = m.stride,
                                  .iterations = m.iterations,
                                  .reserved = 0};
    char why[kMostText] = "";
    if (function(user, &matrices, stream, why, sizeof why) == 0) return;
    why[kMostText - 1] = '\0';
    throw Error(concat("orthogonalise: ", why));
  };
}

}  // namespace pride::c
