// SPDX-License-Identifier: Apache-2.0
#include "train/models/gpt2_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "pride/error.h"
#include "program/files.h"
#include "program/io/safetensors.h"

namespace pride::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Shape = std::vector<std::int64_t>;

constexpr std::string_view kModulePrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kPositions = "wpe.weight";

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw DataError(concat(file.string(), ": not a GPT-2 that pride can load: ", why));
}

std::string own_name(const std::string& name) {
  return name.starts_with(kModulePrefix) ? name.substr(kModulePrefix.size()) : name;
}

// h.<n>.attn.bias and .masked_bias: the causal mask, which is no parameter
bool is_mask(const std::string& name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

std::map<std::string, Shape> shapes_of(const fs::path& file) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, shape] : read_safetensors_shapes(file)) {
    if (!shapes.emplace(own_name(name), shape).second) {
      refuse(file, concat("tensor \"", own_name(name), "\" is there with and without \"",
                          kModulePrefix, "\""));
    }
  }
  return shapes;
}

Shape table_shape(const fs::path& file, const std::map<std::string, Shape>& shapes,
                  const char* name) {
  const auto found = shapes.find(name);
  if (found == shapes.end() || found->second.size() != 2) {
    refuse(file, concat("tensor \"", name, "\" is ",
                        found == shapes.end() ? "missing" : "not of two dimensions"));
  }
  if (found->second[0] < 1 || found->second[1] < 1) {
    refuse(file, concat("tensor \"", name, "\" is empty"));
  }
  return found->second;
}

void check_shape(const fs::path& file, const std::map<std::string, Shape>& shapes,
                 const std::string& name, const Shape& want) {
  const auto found = shapes.find(name);
  if (found == shapes.end()) refuse(file, concat("tensor \"", name, "\" is missing"));
  if (found->second == want) return;
  refuse(file, concat("tensor \"", name, "\" has the shape ", at::IntArrayRef(found->second),
                      ", expected ", at::IntArrayRef(want)));
}

// The number of layers with all tensors, each of its shape. Their data are in the file, so no model
// is larger than the file. Tensors of layers after a gap are unknown to load_gpt2().
std::int64_t count_layers(const fs::path& file, const std::map<std::string, Shape>& shapes,
                          std::int64_t width) {
  const std::pair<const char*, Shape> tensors[] = {{"ln_1.weight", {width}},
                                                   {"ln_1.bias", {width}},
                                                   {"attn.c_attn.weight", {width, 3 * width}},
                                                   {"attn.c_attn.bias", {3 * width}},
                                                   {"attn.c_proj.weight", {width, width}},
                                                   {"attn.c_proj.bias", {width}},
                                                   {"ln_2.weight", {width}},
                                                   {"ln_2.bias", {width}},
                                                   {"mlp.c_fc.weight", {width, 4 * width}},
                                                   {"mlp.c_fc.bias", {4 * width}},
                                                   {"mlp.c_proj.weight", {4 * width, width}},
                                                   {"mlp.c_proj.bias", {width}}};
  for (std::int64_t layer = 0;; ++layer) {
    const std::string prefix = concat("h.", layer, ".");
    const auto first = shapes.lower_bound(prefix);
    const bool some = first != shapes.end() && first->first.starts_with(prefix);
    if (!some && layer > 0) return layer;
    for (const auto& [name, shape] : tensors) check_shape(file, shapes, prefix + name, shape);
  }
}

void check_size(const fs::path& file, const json& config, const char* key, std::int64_t size) {
  const auto found = config.find(key);
  if (found == config.end() || *found == size) return;
  throw DataError(
      concat(file.string(), ": ", key, " ", found->dump(), ", but the tensors have ", size));
}

// Keys that change the results and have one value in pride, which is also the default.
void check_config(const fs::path& file, const json& config, const GptSize& size) {
  const auto is = [&](const char* key, std::initializer_list<json> allowed) {
    const auto found = config.find(key);
    if (found == config.end() || std::ranges::count(allowed, *found) > 0) return;
    throw DataError(concat(file.string(), ": ", key, " ", found->dump(),
                           " is not what pride's GPT-2 does (", allowed.begin()->dump(), ")"));
  };
  is("model_type", {"gpt2"});
  is("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  is("layer_norm_epsilon", {1e-5});
  is("n_inner", {nullptr, 4 * size.width});
  check_size(file, config, "n_layer", size.layers);
  check_size(file, config, "n_embd", size.width);
  check_size(file, config, "n_positions", size.context);
  check_size(file, config, "vocab_size", size.vocabulary);
  is("scale_attn_weights", {true});
  is("scale_attn_by_inverse_layer_idx", {false});
  is("tie_word_embeddings", {true});
  is("add_cross_attention", {false});
}

std::optional<std::int64_t> heads_of_config(const fs::path& file, const GptSize& size) {
  if (!fs::exists(file)) return std::nullopt;
  const json config = read_json(file);
  if (!config.is_object()) throw DataError(concat(file.string(), ": not a JSON object"));
  check_config(file, config, size);
  const auto heads = config.find("n_head");
  if (heads == config.end()) return std::nullopt;
  if (!heads->is_number_integer()) {
    throw DataError(concat(file.string(), ": n_head ", heads->dump(), " is not an integer"));
  }
  const auto n = heads->get<std::int64_t>();
  if (n < 1 || size.width % n != 0) {
    throw DataError(
        concat(file.string(), ": n_head ", n, " does not divide the width of ", size.width));
  }
  return n;
}

void check_names(const fs::path& file, std::map<std::string, SafeTensor>& tensors,
                 const Model& model) {
  const auto head = tensors.find(kHead);
  if (head != tensors.end()) {
    if (head->second.values != tensors.at("wte.weight").values) {
      refuse(file, concat("tensor \"", kHead,
                          "\" differs from wte.weight; only a tied head is "
                          "known"));
    }
    tensors.erase(head);
  }
  std::erase_if(tensors, [](const auto& item) { return is_mask(item.first); });
  for (const auto& [name, tensor] : tensors) {
    const auto& all = model.parameters();
    if (std::ranges::find(all, name, &ModelParameter::name) == all.end()) {
      refuse(file, concat("tensor \"", name, "\" is unknown"));
    }
  }
}

}  // namespace

fs::path find_gpt2(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / "model.safetensors" : path;
  if (!fs::exists(file)) throw DataError(concat("no checkpoint: ", file.string(), " is not there"));
  return file;
}

GptSize gpt2_size(const fs::path& file, std::optional<std::int64_t> heads) {
  const std::map<std::string, Shape> shapes = shapes_of(file);
  const Shape wte = table_shape(file, shapes, "wte.weight");
  const Shape wpe = table_shape(file, shapes, kPositions);
  GptSize size;
  size.vocabulary = wte[0];
  size.width = wte[1];
  size.context = wpe[0];
  check_shape(file, shapes, kPositions, {wpe[0], size.width});
  for (const char* name : {"ln_f.weight", "ln_f.bias"}) {
    check_shape(file, shapes, name, {size.width});
  }
  size.layers = count_layers(file, shapes, size.width);
  const fs::path config = file.parent_path() / "config.json";
  const auto configured = heads_of_config(config, size);
  PRIDE_CHECK(!heads || !configured || heads == configured, "--heads ", heads.value_or(0), ": ",
              config.string(), " says n_head ", configured.value_or(0));
  if (!heads) heads = configured;
  PRIDE_CHECK(heads.has_value(), file.string(), ": the number of heads is in none of its tensors, ",
              "and there is no ", config.string(), " with n_head; give --heads (OpenAI's models ",
              "have width / 64)");
  size.heads = *heads;
  return size;
}

void load_gpt2(const fs::path& file, Model& model) {
  const std::map<std::string, Shape> shapes = shapes_of(file);
  std::map<std::string, SafeTensor> tensors;
  for (auto& [name, tensor] : read_safetensors(file)) tensors[own_name(name)] = std::move(tensor);
  for (const ModelParameter& p : model.parameters()) {
    Shape want = p.tensor.sizes().vec();
    // the positions may be the first rows of a longer table
    if (p.name == kPositions) want[0] = std::max(want[0], table_shape(file, shapes, kPositions)[0]);
    check_shape(file, shapes, p.name, want);
    if (!std::ranges::all_of(tensors.at(p.name).values, [](float x) { return std::isfinite(x); })) {
      refuse(file, concat("tensor \"", p.name, "\" holds NaN or Inf"));
    }
  }
  check_names(file, tensors, model);
  for (const ModelParameter& p : model.parameters()) {
    const auto n = static_cast<std::size_t>(p.tensor.numel());
    std::copy_n(tensors.at(p.name).values.begin(), n, p.tensor.data_ptr<float>());
  }
}

std::string gpt2_config(const GptSize& size) {
  const nlohmann::ordered_json config = {{"model_type", "gpt2"},
                                         {"architectures", {"GPT2LMHeadModel"}},
                                         {"n_layer", size.layers},
                                         {"n_head", size.heads},
                                         {"n_embd", size.width},
                                         {"n_positions", size.context},
                                         {"n_ctx", size.context},
                                         {"vocab_size", size.vocabulary},
                                         {"activation_function", "gelu_new"},
                                         {"layer_norm_epsilon", 1e-5},
                                         {"tie_word_embeddings", true},
                                         {"embd_pdrop", 0.0},
                                         {"attn_pdrop", 0.0},
                                         {"resid_pdrop", 0.0}};
  return config.dump();
}

}  // namespace pride::train
