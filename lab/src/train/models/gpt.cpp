// The GPT, and the registered ones with sizes from a preset or a checkpoint.
// SPDX-License-Identifier: Apache-2.0
#include "train/models/gpt.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pride/error.h"
#include "program/hex.h"
#include "program/io/mapped_file.h"
#include "train/models/gpt2_file.h"
#include "train/models/parts.h"

namespace pride::train {
namespace {

constexpr double kNormEps = 1e-5;

const GptSize& checked(const GptSize& size) {
  PRIDE_CHECK(size.layers >= 1 && size.heads >= 1 && size.width >= 1 && size.context >= 1 &&
                  size.vocabulary >= 1,
              "gpt: layers ", size.layers, ", heads ", size.heads, ", width ", size.width,
              ", context ", size.context, ", vocabulary ", size.vocabulary,
              ": all must be at least 1");
  PRIDE_CHECK(size.width % size.heads == 0, "gpt: width ", size.width, " is not a multiple of ",
              size.heads, " heads");
  for (const double deviation : {size.init_std, size.embedding_std}) {
    PRIDE_CHECK(std::isfinite(deviation) && deviation > 0, "gpt: initial values of deviation ",
                deviation, ": must be positive");
  }
  const double rows = static_cast<double>(size.vocabulary) + static_cast<double>(size.context);
  check_memory("gpt", size.layers, size.width, rows * static_cast<double>(size.width));
  return size;
}

at::Tensor conv1d(const at::Tensor& x, const Affine& p) {
  const at::Tensor flat = at::addmm(p.bias, x.view({-1, x.size(-1)}), p.weight);
  return flat.view({x.size(0), x.size(1), p.bias.size(0)});
}

// The mask added to the scores of the last n of `total` tokens: -inf if the column's token comes
// after the row's, so that a token sees itself and earlier ones. Made for the present length,
// because a long context may never be filled.
at::Tensor causal_mask(std::int64_t n, std::int64_t total, const at::TensorOptions& options) {
  return at::full({n, total}, -std::numeric_limits<float>::infinity(), options).triu(total - n + 1);
}

}  // namespace

Gpt::Gpt(const GptSize& size) : size_(checked(size)) {
  const std::int64_t width = size.width;
  wte_ = declare("wte.weight", {size.vocabulary, width}, Init::normal(size.embedding_std), false);
  wpe_ = declare("wpe.weight", {size.context, width}, Init::normal(size.init_std), false);
  for (std::int64_t i = 0; i < size.layers; ++i) blocks_.push_back(declare_block(i));
  ln_f_ = declare_norm("ln_f");
}

at::Tensor Gpt::logits(const at::Tensor& input) {
  return at::matmul(norm(hidden(input), ln_f_), wte_.t());
}

at::Tensor Gpt::logits_at(const at::Tensor& input, const at::Tensor& places) {
  const at::Tensor rows = hidden(input).view({-1, size_.width}).index_select(0, places);
  return at::matmul(norm(rows, ln_f_), wte_.t());
}

at::Tensor Gpt::hidden(const at::Tensor& input) {
  PRIDE_CHECK(input.dim() == 2 && input.size(1) <= size_.context, "gpt: input of shape ",
              input.sizes(), ", expected (batch, length <= ", size_.context, ")");
  const std::int64_t length = input.size(1);
  const at::Tensor mask = causal_mask(length, length, wte_.options());
  at::Tensor x = at::embedding(wte_, input) + wpe_.narrow(0, 0, length);
  for (const Block& block : blocks_) {
    x = forward(block, x,
                [&](const at::Tensor& qkv) { return self_attention(qkv, size_.heads, mask); });
  }
  return x;
}

at::Tensor Gpt::read(const at::Tensor& tokens, KvCache& cache) const {
  const c10::NoGradGuard no_grad;
  const std::int64_t n = tokens.size(0);
  PRIDE_CHECK(tokens.dim() == 1 && n >= 1 && cache.length + n <= size_.context, "gpt: ", n,
              " tokens after ", cache.length, ", the context has ", size_.context);
  at::Tensor x = (at::embedding(wte_, tokens) + wpe_.narrow(0, cache.length, n)).unsqueeze(0);
  const at::Tensor mask = causal_mask(n, cache.length + n, wte_.options());
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    x = forward(blocks_[layer], x,
                [&](const at::Tensor& qkv) { return attend_cached(qkv, mask, layer, cache); });
  }
  cache.length += n;
  return at::matmul(norm(x.select(1, n - 1), ln_f_), wte_.t()).view(-1);
}

Affine Gpt::declare_norm(const std::string& name) {
  return {declare(name + ".weight", {size_.width}, Init::constant(1), false),
          declare(name + ".bias", {size_.width}, Init::constant(0), false)};
}

Affine Gpt::declare_conv1d(const std::string& name, std::int64_t in, std::int64_t out,
                           double deviation) {
  return {declare(name + ".weight", {in, out}, Init::normal(deviation)),
          declare(name + ".bias", {out}, Init::constant(0), false)};
}

Gpt::Block Gpt::declare_block(std::int64_t index) {
  const std::string prefix = concat("h.", index, ".");
  const std::int64_t width = size_.width;
  // the sum of 2 n_layer residual branches keeps the variance of one
  const double deviation = size_.init_std;
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(size_.layers));
  Block block;
  block.ln_1 = declare_norm(prefix + "ln_1");
  block.c_attn = declare_conv1d(prefix + "attn.c_attn", width, 3 * width, deviation);
  block.attn_proj = declare_conv1d(prefix + "attn.c_proj", width, width, residual);
  block.ln_2 = declare_norm(prefix + "ln_2");
  block.c_fc = declare_conv1d(prefix + "mlp.c_fc", width, 4 * width, deviation);
  block.mlp_proj = declare_conv1d(prefix + "mlp.c_proj", 4 * width, width, residual);
  return block;
}

at::Tensor Gpt::norm(const at::Tensor& x, const Affine& p) const {
  return at::layer_norm(x, {size_.width}, p.weight, p.bias, kNormEps);
}

at::Tensor Gpt::forward(const Block& b, const at::Tensor& x, const Attention& attention) const {
  const at::Tensor qkv = conv1d(norm(x, b.ln_1), b.c_attn);
  const at::Tensor y = x + conv1d(attention(qkv), b.attn_proj);
  const at::Tensor hidden = at::gelu(conv1d(norm(y, b.ln_2), b.c_fc), "tanh");
  return y + conv1d(hidden, b.mlp_proj);
}

// The new tokens' queries over all keys and values so far, theirs included.
at::Tensor Gpt::attend_cached(const at::Tensor& qkv, const at::Tensor& mask, std::size_t layer,
                              KvCache& cache) const {
  const std::int64_t n = qkv.size(1), heads = size_.heads, total = cache.length + n;
  const std::int64_t depth = size_.width / heads;
  const auto parts = qkv.view({n, 3, heads, depth}).permute({1, 2, 0, 3}).unbind(0);
  if (cache.keys.size() <= layer) {
    cache.keys.push_back(at::empty({heads, size_.context, depth}, qkv.options()));
    cache.values.push_back(at::empty_like(cache.keys.back()));
  }
  cache.keys[layer].narrow(1, cache.length, n).copy_(parts[1]);
  cache.values[layer].narrow(1, cache.length, n).copy_(parts[2]);
  return attend(parts[0], cache.keys[layer].narrow(1, 0, total),
                cache.values[layer].narrow(1, 0, total), mask)
      .transpose(0, 1)
      .reshape({1, n, size_.width});
}

std::unique_ptr<Model> make_gpt(const GptSize& size) { return std::make_unique<Gpt>(size); }

namespace {

// Given sizes must equal the checkpoint's; the context may be shorter.
GptSize size_of_init(const TrainOptions& o, std::int64_t vocabulary) {
  GptSize size = gpt2_size(find_gpt2(o.init), o.heads);
  const auto same = [&](const char* flag, const std::optional<std::int64_t>& given,
                        std::int64_t has) {
    PRIDE_CHECK(!given || *given == has, flag, " ", *given, ": the model of --init has ", has);
  };
  same("--layers", o.layers, size.layers);
  same("--width", o.width, size.width);
  PRIDE_CHECK(o.context.value_or(1) <= size.context, "--context ", *o.context,
              ": the model of --init has ", size.context, " positions");
  PRIDE_CHECK(!o.init_std && !o.embedding_std,
              "--init-std and --embedding-std: the values come from --init");
  PRIDE_CHECK(vocabulary <= size.vocabulary, "--init: the model has ", size.vocabulary,
              " tokens, the data ", vocabulary);
  size.context = o.context.value_or(size.context);
  return size;
}

GptSize size_of_preset(const TrainOptions& o, GptSize size, bool small) {
  size.layers = o.layers.value_or(size.layers);
  size.heads = o.heads.value_or(size.heads);
  size.width = o.width.value_or(size.width);
  size.context = o.context.value_or(size.context);
  if (small) {
    // GPT-2's 0.02 is made for its width. A narrow model with this start only learns the byte
    // frequencies under Lion's sign updates (lab/docs/results/language_long_memory.md). The weights
    // get the deviation of torch's nn.Linear with this width, and the embeddings one that gives the
    // scores of the tied head a deviation of 1.
    const auto width = static_cast<double>(size.width);
    size.init_std = 1 / std::sqrt(3 * width);
    size.embedding_std = 1 / std::sqrt(width);
  }
  size.init_std = o.init_std.value_or(size.init_std);
  size.embedding_std = o.embedding_std.value_or(size.embedding_std);
  return size;
}

ModelMaker maker_of(std::string name, const GptSize& size, const TrainOptions& o) {
  make_gpt(size);  // refuses impossible sizes, before the windows are counted
  ModelMaker maker{.name = std::move(name),
                   .size = {{"layers", size.layers},
                            {"heads", size.heads},
                            {"width", size.width},
                            {"context", size.context},
                            {"vocabulary", size.vocabulary}},
                   .context = size.context,
                   .config = gpt2_config(size),
                   .make = [size] { return make_gpt(size); }};
  if (!o.init.empty()) {
    const std::filesystem::path file = find_gpt2(o.init);
    maker.size.emplace_back("init_hash", hex16(file_hash(file)));
    maker.load_initial = [file](Model& model) { load_gpt2(file, model); };
  }
  if (size.init_std != GptSize{}.init_std) maker.size.emplace_back("init_std", size.init_std);
  if (size.embedding_std != GptSize{}.embedding_std) {
    maker.size.emplace_back("embedding_std", size.embedding_std);
  }
  return maker;
}

ModelInfo gpt_info(const char* name, const char* about, const GptSize& preset, bool small) {
  const auto make = [=, name = std::string(name)](const TrainOptions& o, const ModelInput& input) {
    if (!o.init.empty()) return maker_of("gpt from --init", size_of_init(o, input.classes), o);
    GptSize size = preset;
    size.vocabulary = input.classes;
    const GptSize full = size_of_preset(o, size, small);
    ModelMaker maker = maker_of(name, full, o);
    if (small) maker.lr_scale = std::clamp(10.0 * 128 / static_cast<double>(full.width), 1.0, 10.0);
    return maker;
  };
  return {name, about, ModelInput::Kind::kTokens, make};
}

}  // namespace

ModelInfo gpt_small_info() {
  return gpt_info("gpt-small",
                  "default of lm and fewshot: 4 layers, 4 heads, width 128, context 128", {}, true);
}

ModelInfo gpt2_info() {
  return gpt_info("gpt2", "12, 12, 768, 1024",
                  {.layers = 12, .heads = 12, .width = 768, .context = 1024}, false);
}

}  // namespace pride::train
