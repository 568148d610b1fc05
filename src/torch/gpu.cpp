// SPDX-License-Identifier: Apache-2.0
#include "torch/gpu.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <vector>

#include "device/device.h"
#include "torch/newton_schulz.h"

namespace pride {
namespace {

// Torch identifies a stream of another library by the stream's address.
c10::Stream foreign_stream(const at::Device& place, void* stream) {
  return c10::Stream(c10::Stream::UNSAFE, place, reinterpret_cast<c10::StreamId>(stream));
}

// A tensor over a matrix in the device's memory.
at::Tensor tensor_over(const at::Device& place, float* data, const DeviceMatrices& m) {
  const std::int64_t sizes[] = {static_cast<std::int64_t>(m.rows),
                                static_cast<std::int64_t>(m.cols)};
  const std::int64_t strides[] = {static_cast<std::int64_t>(m.stride), 1};
  return at::for_blob(data, sizes)
      .strides(at::IntArrayRef(strides))
      .target_device(place)
      .options(at::TensorOptions(at::kFloat).device(place))
      .make_tensor();
}

}  // namespace

at::DeviceType& gpu_type() noexcept {
  static at::DeviceType type = at::kCUDA;
  return type;
}

Gpu::Gpu(const at::Device& place)
    : place_(place),
      device_(cuda_device(place.has_index() ? place.index() : 0)),
      event_(place.type()) {}

std::string Gpu::name() const { return device_->name(); }

void Gpu::set(OptimizerOptions& options, at::ScalarType products) const {
  options.device = device_;
  options.stream = device_->stream();  // follow_torch() and lead_torch() order it with torch's
  options.orthogonalise = [place = place_, products](const DeviceMatrices& m, void* stream) {
    const c10::StreamGuard guard(foreign_stream(place, stream));
    std::vector<at::Tensor> matrices;
    for (float* const data : m.data) matrices.push_back(tensor_over(place, data, m));
    newton_schulz(matrices, m.iterations, products);
  };
}

void Gpu::follow_torch() {
  event_.record(current());
  event_.block(queue());
}

void Gpu::lead_torch() {
  event_.record(queue());
  event_.block(current());
}

c10::Stream Gpu::current() const {
  return c10::impl::VirtualGuardImpl(place_.type()).getStream(place_);
}

c10::Stream Gpu::queue() const { return foreign_stream(place_, device_->stream()); }

}  // namespace pride
