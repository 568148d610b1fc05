// GPT-2 of torch's own modules, and checkpoints with random weights for it.
// SPDX-License-Identifier: Apache-2.0
// torch::nn::MultiheadAttention, Linear, LayerNorm, Embedding and functional::gelu, whose weights
// are the checkpoint's, transposed where nn.Linear wants them. It shares no code with
// models/gpt.cpp.
#pragma once

#include <torch/torch.h>

#include <limits>
#include <map>
#include <string>

#include "pride/error.h"
#include "program/io/safetensors.h"
#include "train/models/gpt.h"
#include "train_names.h"

namespace pride::app::test {

using Tensors = std::map<std::string, SafeTensor>;

inline SafeTensor random_tensor(std::vector<std::int64_t> shape, double mean) {
  const torch::Tensor values = torch::randn(shape) * 0.3 + mean;
  SafeTensor tensor{.dtype = "F32", .shape = std::move(shape), .values = {}};
  tensor.values.assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
  return tensor;
}

// Names and shapes as transformers' GPT2LMHeadModel saves them.
inline Tensors checkpoint(const GptSize& size, const std::string& prefix) {
  torch::manual_seed(5);
  Tensors all;
  const std::int64_t w = size.width;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, double mean = 0) {
    all[prefix + name] = random_tensor(std::move(shape), mean);
  };
  const auto add_affine = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    in == 0 ? add(name + ".weight", {out}, 1) : add(name + ".weight", {in, out});
    add(name + ".bias", {out});
  };
  add("wte.weight", {size.vocabulary, w});
  add("wpe.weight", {size.context, w});
  for (int i = 0; i < size.layers; ++i) {
    const std::string h = concat("h.", i, ".");
    add_affine(h + "ln_1", 0, w);
    add_affine(h + "attn.c_attn", w, 3 * w);
    add_affine(h + "attn.c_proj", w, w);
    add_affine(h + "ln_2", 0, w);
    add_affine(h + "mlp.c_fc", w, 4 * w);
    add_affine(h + "mlp.c_proj", 4 * w, w);
  }
  add_affine("ln_f", 0, w);
  return all;
}

class TorchGpt2 {
 public:
  TorchGpt2(const Tensors& tensors, const std::string& prefix, const GptSize& size)
      : tensors_(tensors), prefix_(prefix), size_(size) {}

  // (length) -> (length, vocabulary)
  torch::Tensor logits(const torch::Tensor& ids) const {
    const std::int64_t n = ids.size(0);
    auto wte = torch::nn::Embedding::from_pretrained(get("wte.weight"));
    auto wpe = torch::nn::Embedding::from_pretrained(get("wpe.weight"));
    torch::Tensor x = wte(ids) + wpe(torch::arange(n));
    for (int i = 0; i < size_.layers; ++i) {
      const std::string h = concat("h.", i, ".");
      x = x + attention(h, norm(h + "ln_1", x));
      const torch::Tensor hidden =
          torch::nn::functional::gelu(linear(h + "mlp.c_fc", norm(h + "ln_2", x)),
                                      torch::nn::functional::GELUFuncOptions().approximate("tanh"));
      x = x + linear(h + "mlp.c_proj", hidden);
    }
    return torch::nn::functional::linear(norm("ln_f", x), get("wte.weight"));
  }

 private:
  torch::Tensor get(const std::string& name) const {
    const SafeTensor& t = tensors_.at(prefix_ + name);
    return torch::tensor(t.values).view(t.shape);
  }
  torch::Tensor norm(const std::string& name, const torch::Tensor& x) const {
    torch::nn::LayerNorm layer(torch::nn::LayerNormOptions({size_.width}));
    layer->weight.set_data(get(name + ".weight"));
    layer->bias.set_data(get(name + ".bias"));
    return layer(x);
  }
  torch::Tensor linear(const std::string& name, const torch::Tensor& x) const {
    const torch::Tensor weight = get(name + ".weight").t();
    torch::nn::Linear layer(weight.size(1), weight.size(0));
    layer->weight.set_data(weight);
    layer->bias.set_data(get(name + ".bias"));
    return layer(x);
  }
  torch::Tensor attention(const std::string& h, const torch::Tensor& x) const {
    torch::nn::MultiheadAttention layer(
        torch::nn::MultiheadAttentionOptions(size_.width, size_.heads));
    layer->in_proj_weight.set_data(get(h + "attn.c_attn.weight").t().contiguous());
    layer->in_proj_bias.set_data(get(h + "attn.c_attn.bias"));
    layer->out_proj->weight.set_data(get(h + "attn.c_proj.weight").t());
    layer->out_proj->bias.set_data(get(h + "attn.c_proj.bias"));
    // the C++ module adds a mask, of whatever type
    const torch::Tensor future =
        torch::full({x.size(0), x.size(0)}, -std::numeric_limits<float>::infinity()).triu(1);
    const torch::Tensor rows = x.unsqueeze(1);  // (length, batch, width)
    return std::get<0>(layer(rows, rows, rows, torch::Tensor(), false, future)).squeeze(1);
  }

  const Tensors& tensors_;
  std::string prefix_;
  GptSize size_;
};

}  // namespace pride::app::test
