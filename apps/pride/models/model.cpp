// What all models share: declaring parameters and self-attention from plain batched products.
// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>

#include "models/init.h"
#include "pride/error.h"

namespace pride::app {

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

}  // namespace pride::app
