// SPDX-License-Identifier: Apache-2.0
#include "models/gpt.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "pride/error.h"

namespace pride::app {
namespace {

constexpr double kDeviation = 0.02;
constexpr double kNormEps = 1e-5;

class Gpt final : public Model {
 public:
  explicit Gpt(const GptSize& size) : size_(size) {
    const std::int64_t width = size.width;
    wte_ = declare("wte.weight", {size.vocabulary, width}, Init::normal(kDeviation), false);
    wpe_ = declare("wpe.weight", {size.context, width}, Init::normal(kDeviation), false);
    for (std::int64_t i = 0; i < size.layers; ++i) blocks_.push_back(declare_block(i));
    ln_f_ = declare_norm("ln_f");
    // -inf above the diagonal: a token sees itself and what is before it
    mask_ =
        at::full({size.context, size.context}, -std::numeric_limits<float>::infinity(), at::kFloat)
            .triu(1);
  }

  at::Tensor logits(const at::Tensor& input) override {
    PRIDE_CHECK(input.dim() == 2 && input.size(1) <= size_.context, "gpt: input of shape ",
                input.sizes(), ", expected (batch, length <= ", size_.context, ")");
    const std::int64_t length = input.size(1);
    mask_ = mask_.to(wte_.options());  // nothing to do but the first time
    const at::Tensor mask = mask_.narrow(0, 0, length).narrow(1, 0, length);
    at::Tensor x = at::embedding(wte_, input) + wpe_.narrow(0, 0, length);
    for (const Block& block : blocks_) x = forward(block, x, mask);
    return at::matmul(norm(x, ln_f_), wte_.t());
  }

 private:
  struct Block {
    Affine ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj;
  };

  Affine declare_norm(const std::string& name) {
    return {declare(name + ".weight", {size_.width}, Init::constant(1), false),
            declare(name + ".bias", {size_.width}, Init::constant(0), false)};
  }

  Affine declare_conv1d(const std::string& name, std::int64_t in, std::int64_t out,
                        double deviation) {
    return {declare(name + ".weight", {in, out}, Init::normal(deviation)),
            declare(name + ".bias", {out}, Init::constant(0), false)};
  }

  Block declare_block(std::int64_t index) {
    const std::string prefix = concat("h.", index, ".");
    const std::int64_t width = size_.width;
    // the sum of 2 n_layer residual branches keeps the variance of one
    const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(size_.layers));
    Block block;
    block.ln_1 = declare_norm(prefix + "ln_1");
    block.c_attn = declare_conv1d(prefix + "attn.c_attn", width, 3 * width, kDeviation);
    block.attn_proj = declare_conv1d(prefix + "attn.c_proj", width, width, residual);
    block.ln_2 = declare_norm(prefix + "ln_2");
    block.c_fc = declare_conv1d(prefix + "mlp.c_fc", width, 4 * width, kDeviation);
    block.mlp_proj = declare_conv1d(prefix + "mlp.c_proj", 4 * width, width, residual);
    return block;
  }

  at::Tensor norm(const at::Tensor& x, const Affine& p) const {
    return at::layer_norm(x, {size_.width}, p.weight, p.bias, kNormEps);
  }

  static at::Tensor conv1d(const at::Tensor& x, const Affine& p) {
    const at::Tensor flat = at::addmm(p.bias, x.view({-1, x.size(-1)}), p.weight);
    return flat.view({x.size(0), x.size(1), p.bias.size(0)});
  }

  at::Tensor forward(const Block& b, const at::Tensor& x, const at::Tensor& mask) const {
    const at::Tensor qkv = conv1d(norm(x, b.ln_1), b.c_attn);
    const at::Tensor y = x + conv1d(self_attention(qkv, size_.heads, mask), b.attn_proj);
    const at::Tensor hidden = at::gelu(conv1d(norm(y, b.ln_2), b.c_fc), "tanh");
    return y + conv1d(hidden, b.mlp_proj);
  }

  GptSize size_;
  at::Tensor wte_, wpe_, mask_;
  std::vector<Block> blocks_;
  Affine ln_f_;
};

}  // namespace

std::unique_ptr<Model> make_gpt(const GptSize& size) {
  PRIDE_CHECK(size.layers >= 1 && size.heads >= 1 && size.width >= 1 && size.context >= 1 &&
                  size.vocabulary >= 1,
              "gpt: layers ", size.layers, ", heads ", size.heads, ", width ", size.width,
              ", context ", size.context, ", vocabulary ", size.vocabulary,
              ": all must be at least 1");
  PRIDE_CHECK(size.width % size.heads == 0, "gpt: width ", size.width, " is not a multiple of ",
              size.heads, " heads");
  return std::make_unique<Gpt>(size);
}

}  // namespace pride::app
