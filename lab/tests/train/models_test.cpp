// The models: names and shapes as PyTorch users know them, initial values, gradients, causality.
// SPDX-License-Identifier: Apache-2.0
// Oracle for counts: the published sizes of GPT-2 and of the paper's ViT, summed by hand.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "train/models/gpt.h"
#include "train/models/parts.h"
#include "train/models/vit.h"
#include "train_names.h"

namespace pride::app {
namespace {

constexpr GptSize kTiny = {.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary = 20};
constexpr VitSize kTinyVit = {.layers = 2, .heads = 2, .width = 16, .patch = 8};

std::map<std::string, ModelParameter> by_name(const Model& model) {
  std::map<std::string, ModelParameter> map;
  for (const ModelParameter& p : model.parameters()) map.emplace(p.name, p);
  return map;
}

std::vector<std::int64_t> shape(const std::map<std::string, ModelParameter>& map,
                                const std::string& name) {
  const auto found = map.find(name);
  return found == map.end() ? std::vector<std::int64_t>{-1} : found->second.tensor.sizes().vec();
}

double deviation(const at::Tensor& tensor) { return tensor.detach().std().item<double>(); }

using Shape = std::vector<std::int64_t>;

TEST(Gpt, HasHuggingFaceNamesAndShapes) {
  const auto model = make_gpt(kTiny);
  const auto map = by_name(*model);
  EXPECT_EQ(map.size(), 2U + 12 * 2 + 2);
  EXPECT_EQ(shape(map, "wte.weight"), (Shape{20, 16}));
  EXPECT_EQ(shape(map, "wpe.weight"), (Shape{12, 16}));
  EXPECT_EQ(shape(map, "h.0.ln_1.weight"), (Shape{16}));
  EXPECT_EQ(shape(map, "h.1.attn.c_attn.weight"), (Shape{16, 48}));  // (in, out)
  EXPECT_EQ(shape(map, "h.1.attn.c_proj.bias"), (Shape{16}));
  EXPECT_EQ(shape(map, "h.0.mlp.c_fc.weight"), (Shape{16, 64}));
  EXPECT_EQ(shape(map, "h.0.mlp.c_proj.weight"), (Shape{64, 16}));
  EXPECT_EQ(shape(map, "ln_f.bias"), (Shape{16}));
  EXPECT_EQ(map.count("lm_head.weight"), 0U) << "the head is tied to wte";
}

TEST(Gpt, HasTheSizeOfGpt2) {
  const auto model =
      make_gpt({.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocabulary = 50257});
  EXPECT_EQ(model->n_parameters(), 124439808);
}

TEST(Vit, HasTimmNamesAndThePapersSize) {
  const auto model = make_vit({});
  const auto map = by_name(*model);
  EXPECT_EQ(shape(map, "cls_token"), (Shape{1, 1, 512}));
  EXPECT_EQ(shape(map, "pos_embed"), (Shape{1, 65, 512}));
  EXPECT_EQ(shape(map, "patch_embed.proj.weight"), (Shape{512, 3, 4, 4}));
  EXPECT_EQ(shape(map, "blocks.5.attn.qkv.weight"), (Shape{1536, 512}));  // (out, in)
  EXPECT_EQ(shape(map, "blocks.0.mlp.fc2.weight"), (Shape{512, 2048}));
  EXPECT_EQ(shape(map, "norm.weight"), (Shape{512}));
  EXPECT_EQ(shape(map, "head.weight"), (Shape{10, 512}));
  // blocks 12 d^2 + 13 d each, embedding, positions, class token, final norm, head
  const std::int64_t d = 512;
  EXPECT_EQ(model->n_parameters(),
            6 * (12 * d * d + 13 * d) + (48 * d + d) + 65 * d + d + 2 * d + (10 * d + 10));
}

// The standard error of a deviation over n values is deviation / sqrt(2 n): under 0.6 % here.
TEST(Models, StartWithTheDeviationsOfTheirPapersOrThoseGiven) {
  for (const auto& [init, embedding] : {std::pair{0.02, 0.02}, {0.05, 0.1}}) {
    GptSize size = {.layers = 4, .heads = 2, .width = 128, .context = 64};
    VitSize vit_size = {.layers = 1, .heads = 2, .width = 128, .patch = 4};
    if (init != 0.02) {
      size.init_std = vit_size.init_std = init;
      size.embedding_std = embedding;
    }
    const auto gpt = make_gpt(size);
    gpt->initialise(1);
    const auto g = by_name(*gpt);
    EXPECT_NEAR(deviation(g.at("wte.weight").tensor), embedding, embedding / 40);
    for (const char* name : {"wpe.weight", "h.0.attn.c_attn.weight", "h.3.mlp.c_fc.weight"}) {
      EXPECT_NEAR(deviation(g.at(name).tensor), init, init / 40) << name;
    }
    for (const char* name : {"h.0.attn.c_proj.weight", "h.3.mlp.c_proj.weight"}) {
      EXPECT_NEAR(deviation(g.at(name).tensor), init / std::sqrt(8.0), init / 100) << name;
      EXPECT_NEAR(g.at(name).tensor.mean().item<double>(), 0, init / 100) << name;
    }
    EXPECT_EQ(g.at("h.3.mlp.c_fc.bias").tensor.abs().max().item<float>(), 0.0F);
    EXPECT_EQ(g.at("ln_f.weight").tensor.min().item<float>(), 1.0F);

    const auto vit = make_vit(vit_size);
    vit->initialise(1);
    const auto v = by_name(*vit);
    for (const char* name : {"pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"}) {
      // a normal cut at two deviations has 0.8796 of the deviation
      EXPECT_NEAR(deviation(v.at(name).tensor), init * 0.8796, init / 40) << name;
      EXPECT_LE(v.at(name).tensor.abs().max().item<double>(), 2 * init + 1e-6) << name;
    }
  }
  for (const double refused : {0.0, -0.02, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(make_gpt({.init_std = refused}), InvalidArgument) << refused;
    EXPECT_THROW(make_gpt({.embedding_std = refused}), InvalidArgument) << refused;
    EXPECT_THROW(make_vit({.init_std = refused}), InvalidArgument) << refused;
  }
}

TEST(Models, StartFromTheSeedAndTheNameAlone) {
  std::vector<float> a(1000), b(1000), c(1000), d(1000);
  fill_initial(1, "h.0.attn.c_attn.weight", Init::normal(1), a);
  fill_initial(1, "h.0.attn.c_attn.weight", Init::normal(1), b);
  fill_initial(2, "h.0.attn.c_attn.weight", Init::normal(1), c);
  fill_initial(1, "h.1.attn.c_attn.weight", Init::normal(1), d);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_NE(a, d);
}

TEST(Models, NoDecayMeansBiasesNormsAndEmbeddings) {
  for (const auto& model : {make_gpt(kTiny), make_vit(kTinyVit)}) {
    for (const ModelParameter& p : model->parameters()) {
      const bool table = p.name.starts_with("wte") || p.name.starts_with("wpe") ||
                         p.name == "cls_token" || p.name == "pos_embed";
      EXPECT_EQ(p.decay, p.tensor.dim() > 1 && !table) << p.name;
    }
  }
}

void expect_all_gradients(Model& model, const at::Tensor& input, const at::Tensor& target) {
  model.initialise(3);
  const at::Tensor logits = model.logits(input);
  at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), target).backward();
  for (const ModelParameter& p : model.parameters()) {
    ASSERT_TRUE(p.tensor.grad().defined()) << p.name;
    EXPECT_GT(p.tensor.grad().abs().max().item<double>(), 0) << p.name;
    EXPECT_TRUE(at::isfinite(p.tensor.grad()).all().item<bool>()) << p.name;
  }
}

TEST(Models, EveryParameterGetsAGradient) {
  const at::Tensor tokens = at::arange(24, at::kLong).remainder(20).view({2, 12});
  const auto gpt = make_gpt(kTiny);
  expect_all_gradients(*gpt, tokens, tokens.view({-1}));
  const at::Tensor images = at::arange(2 * 3 * 32 * 32, at::kFloat).sin().view({2, 3, 32, 32});
  const auto vit = make_vit(kTinyVit);
  expect_all_gradients(*vit, images, at::arange(2, at::kLong));
}

TEST(Gpt, SeesNoLaterToken) {
  const c10::NoGradGuard no_grad;
  const auto model = make_gpt(kTiny);
  model->initialise(5);
  const at::Tensor tokens = at::arange(12, at::kLong).view({1, 12});
  const at::Tensor before = model->logits(tokens);
  at::Tensor changed = tokens.clone();
  changed[0][7] = 19;
  const at::Tensor after = model->logits(changed);
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 7), after.narrow(1, 0, 7)));
  for (int position = 7; position < 12; ++position) {
    EXPECT_FALSE(at::equal(before[0][position], after[0][position])) << position;
  }
}

TEST(Gpt, AttentionIsTheTextbooksSum) {
  const at::Tensor q = at::arange(12, at::kFloat).sin().view({1, 3, 4});
  const at::Tensor k = at::arange(12, at::kFloat).cos().view({1, 3, 4});
  const at::Tensor v = at::arange(12, at::kFloat).mul(0.7).sin().view({1, 3, 4});
  const at::Tensor out = attend(q, k, v, {});
  for (int i = 0; i < 3; ++i) {
    double total = 0, sum = 0;
    for (int j = 0; j < 3; ++j) {
      const double weight = std::exp((q[0][i] * k[0][j]).sum().item<double>() / 2);
      total += weight;
      sum += weight * v[0][j][1].item<double>();
    }
    EXPECT_NEAR(out[0][i][1].item<double>(), sum / total, 1e-6) << i;
  }
}

TEST(Models, RefuseImpossibleSizes) {
  EXPECT_THROW(make_gpt({.layers = 0}), InvalidArgument);
  EXPECT_THROW(make_gpt({.heads = 3, .width = 128}), InvalidArgument);
  EXPECT_THROW(make_vit({.patch = 5}), InvalidArgument);
  const auto too_large = [](const auto& make) {
    test::expect_error<InvalidArgument>(make, {"layers of width", "GiB; this machine has"});
  };
  too_large([] { make_gpt({.layers = 1'000'000'000}); });
  too_large([] { make_gpt({.heads = 1, .width = 1 << 24}); });
  too_large([] { make_vit({.layers = 1'000'000'000, .patch = 4}); });
  EXPECT_THROW(make_gpt(kTiny)->logits(at::zeros({1, 13}, at::kLong)), InvalidArgument);
}

}  // namespace
}  // namespace pride::app
