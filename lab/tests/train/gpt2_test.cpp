// GPT-2 checkpoints: against a model built from torch's own modules, and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: torch_gpt2.h
#include "train/models/gpt2_file.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "program/io/safetensors.h"
#include "support/temp_folder.h"
#include "train/models/generator.h"
#include "train/torch_gpt2.h"
#include "train_names.h"

namespace pride::app {
namespace {

using std::filesystem::path;
using namespace test;

constexpr GptSize kSize = {.layers = 3, .heads = 4, .width = 32, .context = 24, .vocabulary = 50};
// float32 sums of at most 128 terms in another order
constexpr double kTolerance = 2e-5;

class Gpt2File : public ::testing::Test {
 protected:
  path save(const Tensors& tensors, const nlohmann::ordered_json& config =
                                        nlohmann::ordered_json::parse(gpt2_config(kSize))) {
    write_safetensors(folder_.path() / "model.safetensors", tensors, {{"format", "pt"}});
    folder_.write("config.json", config.dump());
    return folder_.path() / "model.safetensors";
  }
  // A model of the sizes that the file has, but for the context.
  void load(const Tensors& tensors, Gpt& model) {
    const path file = save(tensors);
    const GptSize size = gpt2_size(file, {});
    EXPECT_EQ(size.layers, model.size().layers);
    EXPECT_EQ(size.vocabulary, model.size().vocabulary);
    load_gpt2(file, model);
  }
  void refuses(const Tensors& tensors, std::initializer_list<std::string_view> parts) {
    const path file = save(tensors);
    Gpt model(kSize);
    model.initialise(1);
    const torch::Tensor before = model.parameters()[0].tensor.detach().clone();
    expect_error<DataError>([&] { load_gpt2(file, model); }, parts);
    EXPECT_TRUE(torch::equal(before, model.parameters()[0].tensor)) << "changed on failure";
  }

  TempFolder folder_;
};

TEST_F(Gpt2File, GivesTheLogitsOfTorchsOwnModules) {
  for (const std::string prefix : {"", "transformer."}) {
    Tensors tensors = checkpoint(kSize, prefix);
    Gpt model(kSize);
    load(tensors, model);
    const torch::NoGradGuard no_grad;
    const torch::Tensor ids = torch::randint(kSize.vocabulary, {2, kSize.context}, torch::kLong);
    const torch::Tensor logits = model.logits(ids);
    const TorchGpt2 oracle(tensors, prefix, kSize);
    for (int row = 0; row < 2; ++row) {
      const torch::Tensor expected = oracle.logits(ids[row]);
      EXPECT_GT(expected.std().item<double>(), 0.5) << "no test of anything";
      EXPECT_LT((logits[row] - expected).abs().max().item<double>(), kTolerance * 50);
      EXPECT_LT((logits[row] - expected).abs().mean().item<double>(), kTolerance);
    }
  }
}

TEST_F(Gpt2File, ReadsWhatTransformersAddsToIt) {
  Tensors tensors = checkpoint(kSize, "transformer.");
  tensors["lm_head.weight"] = tensors.at("transformer.wte.weight");
  tensors["transformer.h.1.attn.bias"] = random_tensor({1, 1, 24, 24}, 0);
  tensors["transformer.h.1.attn.masked_bias"] = random_tensor({}, 0);
  Gpt model(kSize);
  load(tensors, model);
  EXPECT_EQ(model.parameters()[0].tensor[3][4].item<float>(),
            tensors.at("transformer.wte.weight").values[3 * 32 + 4]);
}

TEST_F(Gpt2File, TakesTheFirstPositionsForAShorterContext) {
  const Tensors tensors = checkpoint(kSize, "");
  GptSize size = kSize;
  size.context = 5;
  Gpt model(size);
  load(tensors, model);
  const torch::NoGradGuard no_grad;
  const torch::Tensor ids = torch::randint(kSize.vocabulary, {1, 5}, torch::kLong);
  const torch::Tensor expected = TorchGpt2(tensors, "", kSize).logits(ids[0]);
  EXPECT_LT((model.logits(ids)[0] - expected).abs().mean().item<double>(), kTolerance);
}

TEST_F(Gpt2File, RefusesWhatDiffersByName) {
  Tensors tensors = checkpoint(kSize, "transformer.");
  tensors.erase("transformer.h.2.mlp.c_fc.bias");
  refuses(tensors, {"model.safetensors", "h.2.mlp.c_fc.bias", "missing"});
  tensors = checkpoint(kSize, "");
  tensors["h.0.attn.rotary.weight"] = random_tensor({3}, 0);
  refuses(tensors, {"h.0.attn.rotary.weight", "unknown"});
  tensors = checkpoint(kSize, "");
  tensors["h.1.attn.c_attn.weight"].shape = {96, 32};
  refuses(tensors, {"h.1.attn.c_attn.weight", "[96, 32]", "[32, 96]"});
  tensors = checkpoint(kSize, "");
  tensors["lm_head.weight"] = tensors.at("wte.weight");
  tensors["lm_head.weight"].values[7] += 1;
  refuses(tensors, {"lm_head.weight", "tied"});
}

TEST_F(Gpt2File, RefusesValuesThatAreNoNumbers) {
  Tensors tensors = checkpoint(kSize, "");
  tensors.at("h.1.mlp.c_fc.bias").values.back() = std::nanf("");
  refuses(tensors, {"model.safetensors", "\"h.1.mlp.c_fc.bias\" holds NaN or Inf"});
}

// No model is built without its data in the file, whatever the header claims.
TEST_F(Gpt2File, CountsOnlyLayersThatAreThere) {
  Tensors tensors = checkpoint(kSize, "");
  tensors["h.900000.foo"] = {.shape = {0}, .values = {}};
  path file = save(tensors);
  EXPECT_EQ(gpt2_size(file, {}).layers, 3);
  refuses(tensors, {"h.900000.foo", "unknown"});
  const auto sizes_refused = [&](std::initializer_list<std::string_view> parts) {
    file = save(tensors);
    expect_error<DataError>([&] { gpt2_size(file, {}); }, parts);
  };
  tensors = checkpoint(kSize, "");
  tensors.erase("h.1.ln_2.bias");
  sizes_refused({"h.1.ln_2.bias", "missing"});
  tensors = checkpoint(kSize, "");
  std::erase_if(tensors, [](const auto& item) { return item.first.starts_with("h.0."); });
  sizes_refused({"h.0.ln_1.weight", "missing"});
  tensors = checkpoint(kSize, "");
  tensors["h.2.mlp.c_fc.weight"].shape = {128, 32};
  sizes_refused({"h.2.mlp.c_fc.weight", "[128, 32]", "[32, 128]"});
  tensors = checkpoint(kSize, "");
  tensors["wpe.weight"].shape = {32, 24};
  sizes_refused({"wpe.weight", "[32, 24]", "[32, 32]"});
  tensors = checkpoint(kSize, "");
  tensors["wte.weight"] = {.shape = {0, 1L << 40}, .values = {}};
  sizes_refused({"wte.weight", "empty"});
}

// A mask of all positions would take 4 TiB.
TEST_F(Gpt2File, LongContextsCostOnlyWhatIsRead) {
  GptSize size = kSize;
  size.context = 8;
  Gpt brief(size);
  brief.initialise(1);
  size.context = std::int64_t{1} << 20;
  Gpt patient(size);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < brief.parameters().size(); ++i) {
    const torch::Tensor from = brief.parameters()[i].tensor;
    patient.parameters()[i].tensor.narrow(0, 0, from.size(0)).copy_(from);
  }
  const torch::Tensor ids = torch::randint(kSize.vocabulary, {2, 8}, torch::kLong);
  EXPECT_TRUE(torch::equal(brief.logits(ids), patient.logits(ids)));
  KvCache a, b;
  for (std::int64_t at = 0, n = 3; at < 8; at += n, n = 1) {
    const torch::Tensor part = ids[0].narrow(0, at, n);
    // torch may round products of caches with other strides otherwise
    EXPECT_TRUE(torch::allclose(brief.read(part, a), patient.read(part, b), 1e-5, 1e-6)) << at;
  }
}

TEST_F(Gpt2File, NeedsTheHeadsFromSomewhere) {
  const path file = save(checkpoint(kSize, ""));
  EXPECT_EQ(gpt2_size(file, {}).heads, 4);
  EXPECT_EQ(gpt2_size(file, 4).heads, 4);
  expect_error<InvalidArgument>([&] { gpt2_size(file, 8); }, {"--heads 8", "n_head 4"});
  EXPECT_EQ(gpt2_size(file, {}).layers, 3);
  std::filesystem::remove(folder_.path() / "config.json");
  expect_error<InvalidArgument>([&] { gpt2_size(file, {}); }, {"--heads"});
  EXPECT_EQ(gpt2_size(file, 2).heads, 2);
}

TEST_F(Gpt2File, RefusesConfigurationsThatWouldGiveOtherResults) {
  const auto refused = [&](const char* key, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(gpt2_config(kSize));
    config[key] = value;
    const path file = save(checkpoint(kSize, ""), config);
    expect_error<DataError>([&] { gpt2_size(file, {}); }, {"config.json", key});
  };
  refused("activation_function", "relu");
  refused("layer_norm_epsilon", 1e-6);
  refused("model_type", "gpt_neo");
  refused("scale_attn_by_inverse_layer_idx", true);
  refused("n_inner", 100);
  refused("n_head", "four");
  for (const char* key : {"n_layer", "n_embd", "n_positions", "vocab_size"}) {
    refused(key, nlohmann::ordered_json::parse(gpt2_config(kSize)).at(key).get<int>() + 1);
  }
}

TEST_F(Gpt2File, ReadingInPiecesGivesTheLogitsOfReadingAtOnce) {
  Gpt model(kSize);
  load(checkpoint(kSize, ""), model);
  const torch::NoGradGuard no_grad;
  const torch::Tensor ids = torch::randint(kSize.vocabulary, {kSize.context}, torch::kLong);
  const torch::Tensor whole = model.logits(ids.unsqueeze(0))[0];
  KvCache cache;
  for (std::int64_t at = 0, n = 5; at < kSize.context; at += n, n = 1) {
    const torch::Tensor logits = model.read(ids.narrow(0, at, n), cache);
    EXPECT_LT((logits - whole[at + n - 1]).abs().max().item<double>(), kTolerance * 50) << at;
  }
  EXPECT_THROW(model.read(ids.narrow(0, 0, 1), cache), InvalidArgument) << "the context is full";
}

TEST_F(Gpt2File, GeneratesWhatTheLogitsSayAlsoBeyondTheContext) {
  Gpt model(kSize);
  load(checkpoint(kSize, ""), model);
  const torch::NoGradGuard no_grad;
  constexpr std::size_t n = 60, choices = 48;
  std::vector<Token> all = {1, 2, 3}, streamed;
  const Generator generator(model, choices, {});
  const auto made = generator.run(all, n, {.temperature = 0}, PhiloxStream(0, 0, 0),
                                  [&](Token t) { streamed.push_back(t); });
  ASSERT_EQ(made.size(), n);
  EXPECT_EQ(streamed, made);
  // reads the whole input again for each token: it grows to 24, then its last 12 remain
  std::size_t first = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (all.size() - first > 24) first = all.size() - 12;
    const std::vector<std::int64_t> seen(all.begin() + first, all.end());
    const torch::Tensor logits = model.logits(torch::tensor(seen).unsqueeze(0))[0][-1];
    const auto best = logits.narrow(0, 0, choices).argmax().item<std::int64_t>();
    ASSERT_EQ(made[i], best) << "token " << i;
    all.push_back(made[i]);
  }
  // a text ends at the end token
  const Generator ending(model, choices, made[4]);
  const auto ended = ending.run(std::vector<Token>{1, 2, 3}, n, {.temperature = 0},
                                PhiloxStream(0, 0, 0), [](Token) {});
  EXPECT_EQ(ended.back(), made[4]);
  EXPECT_LE(ended.size(), 5U);
}

}  // namespace
}  // namespace pride::app
