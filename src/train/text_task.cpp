// The task lm: predict the next token of a text, which is a byte unless the data are shards.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "train/streams.h"
#include "train/task_rows.h"
#include "train/token_source.h"

namespace pride::train {
namespace {

constexpr std::size_t kEvalWindows = 16;  // per batch
constexpr std::int64_t kDefaultEvalBatches = 64;

// A sample is one window of context tokens and their successors. Windows lie side by side from an
// offset that each epoch draws anew, so a model sees every token in every position over time.
class TextTask final : public Task {
 public:
  TextTask(const TrainOptions& options, LmData data)
      : model_(model_maker(options, {.classes = data.vocabulary_size()}, "gpt-small")),
        seed_(options.seed),
        data_(std::move(data)),
        train_(*data_.train, context(), /*slack=*/context()),
        valid_(*data_.valid, context(), /*slack=*/0) {
    PRIDE_CHECK(train_.size() > 0 && valid_.size() > 0, "lm: ", data_.train->total(), " ", unit(),
                " of training and ", data_.valid->total(),
                " of validation text are too few for --context ", context());
    const std::int64_t wanted = options.eval_batches.value_or(kDefaultEvalBatches);
    const std::size_t all = (valid_.size() + kEvalWindows - 1) / kEvalWindows;
    n_eval_batches_ = wanted == 0 ? all : std::min(all, static_cast<std::size_t>(wanted));
    bytes_per_target_ = data_.vocabulary ? count_bytes() : 1;
  }

  std::string name() const override { return "lm"; }
  const ModelMaker& model() const override { return model_; }
  std::size_t n_samples() const override { return train_.size(); }
  std::size_t n_eval_batches() const override { return n_eval_batches_; }

  Batch train_batch(std::span<const Draw> draws) const override {
    const Batch batch = empty_batch(draws.size());
    for (std::size_t row = 0; row < draws.size(); ++row) {
      PhiloxStream bits(seed_, streams::kOffset, draws[row].epoch);
      const std::size_t offset = bits.next_below(static_cast<std::uint32_t>(context()));
      fill(train_, draws[row].sample, offset, row, batch);
    }
    return batch;
  }

  Batch eval_batch(std::size_t index) const override {
    const std::size_t chosen = std::min(n_eval_batches_ * kEvalWindows, valid_.size());
    const std::size_t begin = index * kEvalWindows, end = std::min(begin + kEvalWindows, chosen);
    const Batch batch = empty_batch(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      fill(valid_, i * valid_.size() / chosen, 0, i - begin, batch);
    }
    return batch;
  }

  Facts eval_metrics(const EvalSums& sums) const override {
    const double nats = sums.loss / static_cast<double>(sums.count);
    return {{"loss", nats},
            {"bits_per_byte", nats / std::numbers::ln2 / bytes_per_target_},
            {"perplexity", std::exp(nats)},
            {unit(), sums.count}};
  }

  DataFacts data() const override { return data_.facts; }

 private:
  std::size_t context() const { return static_cast<std::size_t>(model_.context); }
  const char* unit() const noexcept { return data_.vocabulary ? "tokens" : "bytes"; }

  Batch empty_batch(std::size_t rows) const {
    const auto n = static_cast<std::int64_t>(rows);
    return {at::empty({n, model_.context}, at::kLong), at::empty({n * model_.context}, at::kLong)};
  }

  // Row `row`: a window's tokens, and their successors as the targets.
  void fill(const Windows& windows, std::size_t window, std::size_t offset, std::size_t row,
            const Batch& batch) const {
    std::vector<std::int64_t> tokens(context() + 1);
    windows.read(window, offset, tokens);
    const std::size_t at = row * context();
    std::copy_n(tokens.begin(), context(), batch.input.data_ptr<std::int64_t>() + at);
    std::copy_n(tokens.begin() + 1, context(), batch.target.data_ptr<std::int64_t>() + at);
  }

  // Mean bytes of text behind a target of the evaluation; <|endoftext|> is none.
  double count_bytes() const {
    std::size_t bytes = 0;
    std::int64_t targets = 0;
    for (std::size_t b = 0; b < n_eval_batches_; ++b) {
      const Batch batch = eval_batch(b);
      const std::int64_t* token = batch.target.data_ptr<std::int64_t>();
      for (std::int64_t i = 0; i < batch.target.numel(); ++i) {
        const auto t = static_cast<Token>(token[i]);
        if (t != data_.vocabulary->end_of_text()) bytes += data_.vocabulary->bytes(t).size();
      }
      targets += batch.target.numel();
    }
    return std::max(static_cast<double>(bytes), 1.0) / static_cast<double>(targets);
  }

  ModelMaker model_;
  std::uint64_t seed_;
  LmData data_;
  Windows train_, valid_;
  std::size_t n_eval_batches_ = 0;
  double bytes_per_target_ = 1;
};

}  // namespace

TaskInfo lm_info() {
  const auto make = [](const TrainOptions& o) {
    return std::make_unique<TextTask>(o, load_lm_data(o));
  };
  return {.name = "lm",
          .about = "text, as bytes or tokens",
          .data =
              "a text file or a folder of text; default: the C++ standard library's headers; "
              "with --vocab, shards of tokens",
          .flags = {"vocab", "init", "context", "embedding-std"},
          .make = make};
}

}  // namespace pride::train
