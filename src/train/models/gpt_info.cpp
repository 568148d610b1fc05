// The GPTs of the registry: their sizes, from a preset or from a checkpoint.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "pride/error.h"
#include "train/hex.h"
#include "train/io/mapped_file.h"
#include "train/models/gpt.h"
#include "train/models/gpt2_file.h"

namespace pride::train {
namespace {

// Sizes may be given again, but not others; of the positions the first may be enough.
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
    // GPT-2's 0.02 is made for its width. A narrow model that starts so learns under the sign
    // updates of Lion how frequent each byte is, and stays there
    // (docs/results/language_long_memory.md). These are the deviation of torch's nn.Linear with so
    // many inputs, and one that gives the scores of the tied head a deviation of 1.
    const auto width = static_cast<double>(size.width);
    size.init_std = 1 / std::sqrt(3 * width);
    size.embedding_std = 1 / std::sqrt(width);
  }
  size.init_std = o.init_std.value_or(size.init_std);
  size.embedding_std = o.embedding_std.value_or(size.embedding_std);
  return size;
}

ModelMaker maker_of(std::string name, const GptSize& size, const TrainOptions& o) {
  make_gpt(size);  // refuses sizes that cannot be, before the windows are counted
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
