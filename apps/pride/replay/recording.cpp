// Checks of a recording, and its copies into flat buffers.
// SPDX-License-Identifier: Apache-2.0
#include "replay/recording.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>

#include "pride/error.h"

namespace pride::app {
namespace {

using std::filesystem::path;

constexpr std::string_view kParam = "param.";
constexpr std::string_view kGrad = "grad.";
constexpr std::int64_t kMaxWorkers = 1024;

[[noreturn]] void refuse(const path& file, const std::string& why) {
  throw DataError(concat(file.string(), ": not a recording for replay: ", why));
}

std::string text(std::span<const std::int64_t> shape) {
  std::ostringstream out;
  out << '[';
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i == 0 ? "" : ", ") << shape[i];
  out << ']';
  return out.str();
}

// Every tensor is a parameter or a gradient, in F32, and has a partner of the other kind.
void check_names(const path& file, const std::map<std::string, SafeTensor>& tensors) {
  if (tensors.empty()) refuse(file, "it holds no tensors");
  for (const auto& [key, tensor] : tensors) {
    const bool is_param = key.starts_with(kParam);
    const auto prefix = is_param ? kParam : kGrad;
    if (!key.starts_with(prefix) || key.size() == prefix.size()) {
      refuse(file, concat("tensor \"", key, "\" is neither param.<name> nor grad.<name>"));
    }
    if (tensor.dtype != "F32") {
      refuse(file, concat("tensor \"", key, "\" has dtype ", tensor.dtype, ", expected F32"));
    }
    const std::string partner = concat(is_param ? kGrad : kParam, key.substr(prefix.size()));
    if (!tensors.contains(partner)) {
      refuse(file, concat("tensor \"", key, "\" is there, \"", partner, "\" is missing"));
    }
  }
}

// The gradient's first two sizes are steps and workers, the same for all; the rest is the shape.
void check_grad(const path& file, const std::string& name, const SafeTensor& param,
                const SafeTensor& grad, Recording& recording) {
  const std::span<const std::int64_t> shape = grad.shape;
  if (shape.size() < 2 || !std::ranges::equal(shape.subspan(2), param.shape)) {
    refuse(file, concat("tensor \"grad.", name, "\" has shape ", text(shape),
                        ", expected [steps, workers] before the parameter's ", text(param.shape)));
  }
  if (shape[1] < 1 || shape[1] > kMaxWorkers) {
    refuse(file, concat("tensor \"grad.", name, "\" has ", shape[1], " workers, expected 1 to ",
                        kMaxWorkers));
  }
  const bool first = recording.tensors.empty();
  if (!first && (shape[0] != recording.steps || shape[1] != recording.workers)) {
    refuse(file, concat("tensor \"grad.", name, "\" has ", shape[0], " steps of ", shape[1],
                        " workers, those before it ", recording.steps, " of ", recording.workers));
  }
  recording.steps = shape[0];
  recording.workers = static_cast<int>(shape[1]);
}

}  // namespace

void Recording::copy_params(const Layout& layout, std::span<float> flat) const {
  for (const TensorSlot& slot : layout.tensors()) {
    std::ranges::copy(tensors.at(slot.spec.name).param, flat.subspan(slot.offset).begin());
  }
}

void Recording::copy_grads(const Layout& layout, std::int64_t step, int worker,
                           std::span<float> flat) const {
  const auto row = static_cast<std::size_t>(step * workers + worker);
  for (const TensorSlot& slot : layout.tensors()) {
    const std::span<const float> all = tensors.at(slot.spec.name).grads;
    std::ranges::copy(all.subspan(row * slot.n, slot.n), flat.subspan(slot.offset).begin());
  }
}

Recording make_recording(const path& file, std::map<std::string, SafeTensor> tensors) {
  check_names(file, tensors);
  Recording recording;
  for (auto& [key, param] : tensors) {
    if (!key.starts_with(kParam)) continue;
    const std::string name = key.substr(kParam.size());
    SafeTensor& grad = tensors.at(concat(kGrad, name));
    check_grad(file, name, param, grad, recording);
    recording.tensors.emplace(name, RecordedTensor{.shape = std::move(param.shape),
                                                   .param = std::move(param.values),
                                                   .grads = std::move(grad.values)});
  }
  return recording;
}

}  // namespace pride::app
