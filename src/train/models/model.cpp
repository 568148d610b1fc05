// The registry of models, and what they share: parameters, self-attention from batched products.
// SPDX-License-Identifier: Apache-2.0
#include "pride/train/model.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "pride/error.h"
#include "train/models/init.h"
#include "train/models/parts.h"

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
  const at::NoGradGuard no_grad;
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

}  // namespace pride::train
