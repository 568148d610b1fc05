// SPDX-License-Identifier: Apache-2.0
#include "train/gpt_task.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/mapped_file.h"
#include "models/gpt2_file.h"
#include "pride/error.h"
#include "train/hex.h"

namespace pride::app {
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

GptSize size_of_preset(const TrainOptions& o, std::int64_t vocabulary) {
  GptSize size;
  const std::string model = o.model.empty() ? "gpt-small" : o.model;
  const bool small = model == "gpt-small";
  if (model == "gpt2") {
    size = {.layers = 12, .heads = 12, .width = 768, .context = 1024};
  } else {
    PRIDE_CHECK(small, "--model ", model, ": for ", o.task, " it must be one of gpt-small, gpt2");
  }
  size.vocabulary = vocabulary;
  size.layers = o.layers.value_or(size.layers);
  size.heads = o.heads.value_or(size.heads);
  size.width = o.width.value_or(size.width);
  size.context = o.context.value_or(size.context);
  if (small) {
    // GPT-2's 0.02 is made for its width. A narrow model that starts so learns under the sign
    // updates of Lion how frequent each byte is, and stays there (docs/results.md, lm-small). These
    // are the deviation of torch's nn.Linear with so many inputs, and one that gives the scores of
    // the tied head a deviation of 1.
    const auto width = static_cast<double>(size.width);
    size.init_std = 1 / std::sqrt(3 * width);
    size.embedding_std = 1 / std::sqrt(width);
  }
  size.init_std = o.init_std.value_or(size.init_std);
  size.embedding_std = o.embedding_std.value_or(size.embedding_std);
  return size;
}

GptSize gpt_size(const TrainOptions& o, std::int64_t vocabulary) {
  PRIDE_CHECK(!o.patch, "--patch is for images only");
  const GptSize size = o.init.empty() ? size_of_preset(o, vocabulary) : size_of_init(o, vocabulary);
  make_gpt(size);  // refuses sizes that cannot be, before the windows are counted
  return size;
}

std::string model_name_of(const TrainOptions& o) {
  if (!o.init.empty()) return "gpt from --init";
  return o.model.empty() ? "gpt-small" : o.model;
}

}  // namespace

GptTask::GptTask(const TrainOptions& options, std::int64_t vocabulary)
    : size_(gpt_size(options, vocabulary)),
      model_(model_name_of(options)),
      init_(options.init.empty() ? "" : find_gpt2(options.init)) {
  if (!init_.empty()) init_hash_ = hex16(file_hash(init_));
}

nlohmann::ordered_json GptTask::model_size() const {
  nlohmann::ordered_json size = {{"layers", size_.layers},
                                 {"heads", size_.heads},
                                 {"width", size_.width},
                                 {"context", size_.context},
                                 {"vocabulary", size_.vocabulary}};
  if (!init_.empty()) size["init_hash"] = init_hash_;
  if (size_.init_std != GptSize{}.init_std) size["init_std"] = size_.init_std;
  if (size_.embedding_std != GptSize{}.embedding_std) size["embedding_std"] = size_.embedding_std;
  return size;
}

void GptTask::load_initial(Model& model) const {
  if (!init_.empty()) load_gpt2(init_, model);
}

nlohmann::ordered_json GptTask::model_config() const { return gpt2_config(size_); }

}  // namespace pride::app
