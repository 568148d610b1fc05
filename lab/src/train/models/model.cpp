// The registry of models, and what they share: parameters and their initial values, self-attention
// from batched products.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "pride/train/model.h"
#include "train/models/parts.h"
#include "train/streams.h"

namespace pride::train {

Model::~Model() = default;

void check_memory(const char* model, std::int64_t layers, std::int64_t width, double others) {
  const auto w = static_cast<double>(width);
  const double parameters = static_cast<double>(layers) * (12 * w * w + 13 * w) + others;
  const double have =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  constexpr double kGibibyte = 1 << 30;
  PRIDE_CHECK(4 * parameters <= have, model, ": ", layers, " layers of width ", width, " are ",
              parameters, " parameters, which take ", 4 * parameters / kGibibyte,
              " GiB; this machine has ", have / kGibibyte, " GiB");
}

at::Tensor Model::logits_at(const at::Tensor& input, const at::Tensor& places) {
  const at::Tensor all = logits(input);
  return all.view({-1, all.size(-1)}).index_select(0, places);
}

std::int64_t Model::n_parameters() const {
  std::int64_t n = 0;
  for (const ModelParameter& p : parameters_) n += p.tensor.numel();
  return n;
}

void Model::initialise(std::uint64_t seed) {
  for (ModelParameter& p : parameters_) {
    if (p.init.kind == Init::Kind::kKeep) continue;
    float* values = p.tensor.data_ptr<float>();
    fill_initial(seed, p.name, p.init, {values, static_cast<std::size_t>(p.tensor.numel())});
  }
}

void Model::move_to(const at::Device& device, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  for (ModelParameter& p : parameters_) p.tensor.set_data(p.tensor.to(device, dtype));
}

at::Tensor Model::declare(std::string name, std::vector<std::int64_t> shape, Init init,
                          bool decay) {
  at::Tensor tensor = at::zeros(shape, at::kFloat).set_requires_grad(true);
  parameters_.push_back({std::move(name), tensor, init, decay});
  return tensor;
}

void Model::adopt(std::string name, at::Tensor tensor, bool decay) {
  parameters_.push_back({std::move(name), std::move(tensor), {Init::Kind::kKeep}, decay});
}

namespace {

std::vector<ModelInfo>& model_rows() {
  static std::vector<ModelInfo> infos = [] {
    std::vector<ModelInfo> all = {gpt_small_info(), gpt2_info()};
    std::ranges::move(vit_infos(), std::back_inserter(all));
    return all;
  }();
  return infos;
}

}  // namespace

const std::vector<ModelInfo>& models() { return model_rows(); }

void register_model(ModelInfo info) {
  PRIDE_CHECK(std::ranges::count(model_rows(), info.name, &ModelInfo::name) == 0, "model ",
              info.name, " is registered already");
  model_rows().push_back(std::move(info));
}

ModelMaker model_maker(const TrainOptions& options, const ModelInput& input,
                       const std::string& default_name) {
  const std::string& name = options.model.empty() ? default_name : options.model;
  std::string fitting;
  for (const ModelInfo& info : model_rows()) {
    if (info.kind != input.kind) continue;
    if (info.name == name) return info.make(options, input);
    fitting += (fitting.empty() ? "" : ", ") + info.name;
  }
  throw InvalidArgument(
      concat("--model ", name, ": for ", options.task, " it must be one of ", fitting));
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& mask) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::Tensor keys = k.transpose(1, 2);
  const at::Tensor scores =
      mask.defined() ? at::baddbmm(mask, q, keys, /*beta=*/1, scale) : at::bmm(q * scale, keys);
  return at::bmm(at::softmax(scores, -1), v);
}

at::Tensor self_attention(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& mask) {
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
  const at::Tensor split = qkv.view({batch, length, 3, heads, width / heads})
                               .permute({2, 0, 3, 1, 4})
                               .reshape({3, batch * heads, length, width / heads});
  const auto parts = split.unbind(0);
  return attend(parts[0], parts[1], parts[2], mask)
      .view({batch, heads, length, width / heads})
      .transpose(1, 2)
      .reshape({batch, length, width});
}

namespace {

constexpr double kTruncation = 2;  // deviations

// Standard normal values, two per pair of uniform ones.
class NormalStream {
 public:
  explicit NormalStream(PhiloxStream bits) : bits_(bits) {}

  double next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    // u1 lies in (0, 1], so its logarithm is finite
    const double u1 = static_cast<double>((bits_.next_u64() >> 11) + 1) * 0x1p-53;
    const double u2 = static_cast<double>(bits_.next_u64() >> 11) * 0x1p-53;
    const double radius = std::sqrt(-2 * std::log(u1));
    const double angle = 2 * std::numbers::pi * u2;
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  PhiloxStream bits_;
  double spare_ = 0;
  bool has_spare_ = false;
};

// FNV-1a over the name: the key of a parameter's stream.
std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace

void fill_initial(std::uint64_t seed, std::string_view name, Init init, std::span<float> values) {
  if (init.kind == Init::Kind::kConstant) {
    std::ranges::fill(values, static_cast<float>(init.value));
    return;
  }
  // the stream's key takes 48 bits of the hash
  NormalStream normal(PhiloxStream(seed, streams::kInit, name_hash(name) >> 16));
  const bool truncated = init.kind == Init::Kind::kTruncatedNormal;
  for (float& value : values) {
    double z = normal.next();
    while (truncated && std::abs(z) > kTruncation) z = normal.next();
    value = static_cast<float>(init.value * z);
  }
}

}  // namespace pride::train
