// The task lm: predict the next byte of a text.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "data/find_data.h"
#include "data/text.h"
#include "models/gpt.h"
#include "pride/error.h"
#include "pride/random_bits.h"
#include "train/hex.h"
#include "train/streams.h"
#include "train/task.h"

namespace pride::app {
namespace {

constexpr std::size_t kEvalWindows = 16;  // per batch
constexpr std::int64_t kDefaultEvalBatches = 64;

GptSize gpt_size(const TrainOptions& o) {
  GptSize size;
  const std::string model = o.model.empty() ? "gpt-small" : o.model;
  if (model == "gpt2") {
    size = {.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocabulary = 256};
  } else {
    PRIDE_CHECK(model == "gpt-small", "--model ", model,
                ": for lm it must be one of gpt-small, gpt2");
  }
  PRIDE_CHECK(!o.patch, "--patch is for cifar10 only");
  size.layers = o.layers.value_or(size.layers);
  size.heads = o.heads.value_or(size.heads);
  size.width = o.width.value_or(size.width);
  size.context = o.context.value_or(size.context);
  return size;
}

// A sample is one window of context bytes and their successors. Windows lie side by side from an
// offset that each epoch draws anew, so a model sees every byte in every position over time.
class TextTask final : public Task {
 public:
  TextTask(const TrainOptions& options, TextCorpus corpus)
      : size_(gpt_size(options)),
        model_(options.model.empty() ? "gpt-small" : options.model),
        seed_(options.seed),
        corpus_(std::move(corpus)) {
    make_gpt(size_);  // refuses sizes that cannot be, before the windows are counted
    const auto context = static_cast<std::size_t>(size_.context);
    PRIDE_CHECK(corpus_.train.size() > 2 * context && corpus_.valid.size() > context,
                "lm: ", corpus_.train.size(), " bytes of training and ", corpus_.valid.size(),
                " of validation text are too few for --context ", context);
    // the offset costs one window
    n_samples_ = (corpus_.train.size() - 1) / context - 1;
    n_eval_windows_ = (corpus_.valid.size() - 1) / context;
    const std::int64_t wanted = options.eval_batches.value_or(kDefaultEvalBatches);
    const std::size_t all = (n_eval_windows_ + kEvalWindows - 1) / kEvalWindows;
    n_eval_batches_ = wanted == 0 ? all : std::min(all, static_cast<std::size_t>(wanted));
  }

  std::string_view name() const noexcept override { return "lm"; }
  std::string_view model_name() const noexcept override { return model_; }
  std::unique_ptr<Model> make_model() const override { return make_gpt(size_); }
  std::size_t n_samples() const noexcept override { return n_samples_; }
  std::size_t n_eval_batches() const noexcept override { return n_eval_batches_; }

  nlohmann::ordered_json model_size() const override {
    return {{"layers", size_.layers},
            {"heads", size_.heads},
            {"width", size_.width},
            {"context", size_.context},
            {"vocabulary", size_.vocabulary}};
  }

  Batch train_batch(std::span<const Draw> draws) const override {
    const auto context = static_cast<std::size_t>(size_.context);
    std::vector<std::size_t> begins;
    for (const Draw& draw : draws) {
      PhiloxStream bits(seed_, streams::kOffset, draw.epoch);
      const std::size_t offset = bits.next_below(static_cast<std::uint32_t>(context));
      begins.push_back(offset + draw.sample * context);
    }
    return windows(corpus_.train, begins);
  }

  Batch eval_batch(std::size_t index) const override {
    const std::size_t chosen = std::min(n_eval_batches_ * kEvalWindows, n_eval_windows_);
    std::vector<std::size_t> begins;
    for (std::size_t i = index * kEvalWindows; i < std::min((index + 1) * kEvalWindows, chosen);
         ++i) {
      begins.push_back(i * n_eval_windows_ / chosen * static_cast<std::size_t>(size_.context));
    }
    return windows(corpus_.valid, begins);
  }

  nlohmann::ordered_json eval_metrics(const EvalSums& sums) const override {
    const double nats = sums.loss / static_cast<double>(sums.count);
    return {{"loss", nats},
            {"bits_per_byte", nats / std::numbers::ln2},
            {"perplexity", std::exp(nats)},
            {"bytes", sums.count}};
  }

  nlohmann::ordered_json data_facts() const override {
    return {{"source", corpus_.source},
            {"hash", hex16(corpus_.hash)},
            {"files", corpus_.n_files},
            {"train_bytes", corpus_.train.size()},
            {"valid_bytes", corpus_.valid.size()}};
  }

 private:
  Batch windows(const std::vector<std::uint8_t>& text,
                const std::vector<std::size_t>& begins) const {
    const auto rows = static_cast<std::int64_t>(begins.size());
    const at::Tensor input = at::empty({rows, size_.context}, at::kLong);
    const at::Tensor target = at::empty({rows * size_.context}, at::kLong);
    auto* x = input.data_ptr<std::int64_t>();
    auto* y = target.data_ptr<std::int64_t>();
    for (const std::size_t begin : begins) {
      const std::uint8_t* bytes = text.data() + begin;
      x = std::copy_n(bytes, size_.context, x);
      y = std::copy_n(bytes + 1, size_.context, y);
    }
    return {input, target};
  }

  GptSize size_;
  std::string model_;
  std::uint64_t seed_;
  TextCorpus corpus_;
  std::size_t n_samples_ = 0, n_eval_windows_ = 0, n_eval_batches_ = 0;
};

}  // namespace

std::unique_ptr<Task> make_text_task(const TrainOptions& options) {
  const std::filesystem::path path = find_data(options.data, "lm");
  return std::make_unique<TextTask>(options, path.empty() ? load_default_text() : load_text(path));
}

}  // namespace pride::app
