// SPDX-License-Identifier: Apache-2.0
#include "train/models/vit.h"

#include <ATen/ATen.h>
#include <algorithm>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "train/models/parts.h"

namespace pride::train {
namespace {

constexpr double kVitNormEps = 1e-6;
constexpr std::int64_t kMostPatches = 4096;  // 64 MiB of attention for each head and image

class Vit final : public Model {
 public:
  explicit Vit(const VitSize& size) : size_(size), grid_(size.image / size.patch) {
    const std::int64_t width = size.width;
    const Init weights = Init::truncated(size.init_std);
    cls_token_ = declare("cls_token", {1, 1, width}, weights, false);
    pos_embed_ = declare("pos_embed", {1, grid_ * grid_ + 1, width}, weights, false);
    patch_ = {
        declare("patch_embed.proj.weight", {width, size.channels, size.patch, size.patch}, weights),
        declare("patch_embed.proj.bias", {width}, Init::constant(0), false)};
    for (std::int64_t i = 0; i < size.layers; ++i) blocks_.push_back(declare_block(i));
    norm_ = declare_norm("norm");
    head_ = declare_linear("head", width, size.classes);
  }

  at::Tensor logits(const at::Tensor& input) override {
    PRIDE_CHECK(input.dim() == 4 && input.size(1) == size_.channels &&
                    input.size(2) == size_.image && input.size(3) == size_.image,
                "vit: input of shape ", input.sizes(), ", expected (batch, ", size_.channels, ", ",
                size_.image, ", ", size_.image, ")");
    const at::Tensor patches = embed_patches(input.to(patch_.weight.scalar_type()));
    const at::Tensor cls = cls_token_.expand({input.size(0), 1, size_.width});
    at::Tensor x = at::cat({cls, patches}, 1) + pos_embed_;
    for (const Block& block : blocks_) x = forward(block, x);
    return at::linear(norm(x.select(1, 0), norm_), head_.weight, head_.bias);
  }

 private:
  struct Block {
    Affine norm1, qkv, proj, norm2, fc1, fc2;
  };

  Affine declare_norm(const std::string& name) {
    return {declare(name + ".weight", {size_.width}, Init::constant(1), false),
            declare(name + ".bias", {size_.width}, Init::constant(0), false)};
  }

  Affine declare_linear(const std::string& name, std::int64_t in, std::int64_t out) {
    return {declare(name + ".weight", {out, in}, Init::truncated(size_.init_std)),
            declare(name + ".bias", {out}, Init::constant(0), false)};
  }

  Block declare_block(std::int64_t index) {
    const std::string prefix = concat("blocks.", index, ".");
    const std::int64_t width = size_.width;
    Block block;
    block.norm1 = declare_norm(prefix + "norm1");
    block.qkv = declare_linear(prefix + "attn.qkv", width, 3 * width);
    block.proj = declare_linear(prefix + "attn.proj", width, width);
    block.norm2 = declare_norm(prefix + "norm2");
    block.fc1 = declare_linear(prefix + "mlp.fc1", width, 4 * width);
    block.fc2 = declare_linear(prefix + "mlp.fc2", 4 * width, width);
    return block;
  }

  // the convolution with stride = kernel = patch, as one product over cut-out patches
  at::Tensor embed_patches(const at::Tensor& images) const {
    const std::int64_t n = images.size(0), p = size_.patch;
    const at::Tensor rows = images.view({n, size_.channels, grid_, p, grid_, p})
                                .permute({0, 2, 4, 1, 3, 5})
                                .reshape({n, grid_ * grid_, size_.channels * p * p});
    return at::linear(rows, patch_.weight.view({size_.width, -1}), patch_.bias);
  }

  at::Tensor norm(const at::Tensor& x, const Affine& p) const {
    return at::layer_norm(x, {size_.width}, p.weight, p.bias, kVitNormEps);
  }

  at::Tensor forward(const Block& b, const at::Tensor& x) const {
    const at::Tensor qkv = at::linear(norm(x, b.norm1), b.qkv.weight, b.qkv.bias);
    const at::Tensor attended = self_attention(qkv, size_.heads, {});
    const at::Tensor y = x + at::linear(attended, b.proj.weight, b.proj.bias);
    const at::Tensor hidden = at::gelu(at::linear(norm(y, b.norm2), b.fc1.weight, b.fc1.bias));
    return y + at::linear(hidden, b.fc2.weight, b.fc2.bias);
  }

  VitSize size_;
  std::int64_t grid_;
  at::Tensor cls_token_, pos_embed_;
  Affine patch_, norm_, head_;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Model> make_vit(const VitSize& size) {
  PRIDE_CHECK(size.layers >= 1 && size.heads >= 1 && size.width >= 1 && size.patch >= 1 &&
                  size.image >= 1 && size.channels >= 1 && size.classes >= 1,
              "vit: layers ", size.layers, ", heads ", size.heads, ", width ", size.width,
              ", patch ", size.patch, ", image ", size.image, ", channels ", size.channels,
              ", classes ", size.classes, ": all must be at least 1");
  PRIDE_CHECK(size.width % size.heads == 0, "vit: width ", size.width, " is not a multiple of ",
              size.heads, " heads");
  PRIDE_CHECK(std::isfinite(size.init_std) && size.init_std > 0,
              "vit: initial values of deviation ", size.init_std, ": must be positive");
  PRIDE_CHECK(size.image % size.patch == 0, "vit: patches of ", size.patch,
              " pixels do not tile an image of ", size.image);
  const std::int64_t side = size.image / size.patch;
  PRIDE_CHECK(side <= kMostPatches / side, "vit: an image of ", size.image, " pixels has ",
              side * side, " patches of ", size.patch, ", at most ", kMostPatches,
              ": every patch attends to every other");
  const double rows = static_cast<double>(side * side) +
                      static_cast<double>(size.channels * size.patch * size.patch) +
                      static_cast<double>(size.classes);
  check_memory("vit", size.layers, size.width, rows * static_cast<double>(size.width));
  return std::make_unique<Vit>(size);
}

namespace {

// timm's config.json: its models have the same parameters. `architecture`: timm's name.
std::string timm_config(const std::string& architecture, const VitSize& size,
                        const std::vector<std::string>& labels) {
  if (labels.empty()) return "";  // small images: timm has no such model
  const nlohmann::ordered_json config = {{"architecture", architecture},
                                         {"num_classes", size.classes},
                                         {"num_features", size.width},
                                         {"global_pool", "token"},
                                         {"model_args",
                                          {{"img_size", size.image},
                                           {"patch_size", size.patch},
                                           {"embed_dim", size.width},
                                           {"depth", size.layers},
                                           {"num_heads", size.heads}}},
                                         {"pretrained_cfg",
                                          {{"input_size", {size.channels, size.image, size.image}},
                                           {"interpolation", "bilinear"},
                                           {"crop_pct", 224.0 / 256},
                                           {"mean", {0.485, 0.456, 0.406}},
                                           {"std", {0.229, 0.224, 0.225}}}},
                                         {"label_names", labels}};
  return config.dump();
}

ModelInfo vit_info(const char* name, const char* about, const char* architecture,
                   const VitSize& preset) {
  const auto make = [=, name = std::string(name)](const TrainOptions& o, const ModelInput& input) {
    VitSize size = preset;
    size.layers = o.layers.value_or(size.layers);
    size.heads = o.heads.value_or(size.heads);
    size.width = o.width.value_or(size.width);
    size.patch = o.patch.value_or(size.patch);
    size.init_std = o.init_std.value_or(size.init_std);
    size.image = input.image_size;
    size.channels = input.channels;
    size.classes = input.classes;
    make_vit(size);  // refuses impossible sizes
    Facts facts = {{"layers", size.layers},
                   {"heads", size.heads},
                   {"width", size.width},
                   {"patch", size.patch}};
    if (!input.labels.empty()) {
      facts.emplace_back("image", size.image);
      facts.emplace_back("classes", size.classes);
    }
    if (size.init_std != VitSize{}.init_std) facts.emplace_back("init_std", size.init_std);
    const auto width = static_cast<double>(size.width);
    return ModelMaker{
        .name = name,
        .size = std::move(facts),
        .lr_scale = preset.width == 128 ? std::clamp(3.0 * 128 / width, 1.0, 3.0) : 1.0,
        .config = timm_config(architecture, size, input.labels),
        .make = [size] { return make_vit(size); }};
  };
  return {name, about, ModelInput::Kind::kImages, make};
}

}  // namespace

std::vector<ModelInfo> vit_infos() {
  const char* small = "vit_small_patch16_224";
  return {vit_info("vit-small", "4 layers, 4 heads, width 128, patch 8: default of cifar10", small,
                   {.layers = 4, .heads = 4, .width = 128, .patch = 8}),
          vit_info("vit-paper", "6, 8, 512, 4: CIFAR-10's in the Distributed Lion paper", small,
                   {.layers = 6, .heads = 8, .width = 512, .patch = 4}),
          vit_info("vit-s16", "12, 6, 384, 16: default of imagenet", small,
                   {.layers = 12, .heads = 6, .width = 384, .patch = 16}),
          vit_info("vit-b16", "12, 12, 768, 16", "vit_base_patch16_224",
                   {.layers = 12, .heads = 12, .width = 768, .patch = 16})};
}

}  // namespace pride::train
