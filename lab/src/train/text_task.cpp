// The task lm: predict the next token of a text. A token is a byte, unless the data are shards of
// tokens.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "pride/train/task.h"
#include "program/hex.h"
#include "train/data/shard.h"
#include "train/data/text.h"
#include "train/streams.h"
#include "train/text/vocabulary.h"

namespace pride::train {
namespace {

// Runs of tokens, in memory or mapped from shards.
struct Tokens {
  std::vector<std::size_t> sizes = {};  // of the runs; no window spans two of them
  // Tokens [begin, begin + out.size()) of a run. Throws DataError on one outside the vocabulary.
  std::function<void(std::size_t run, std::size_t begin, std::span<std::int64_t> out)> copy = {};

  std::size_t total() const { return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}); }
};

// Windows of `context` tokens and their successors, side by side in each run. They begin at an
// offset of at most `slack`, the same in all runs.
class Windows {
 public:
  Windows(const Tokens& tokens, std::size_t context, std::size_t slack)
      : tokens_(tokens), context_(context), first_{0} {
    for (const std::size_t n : tokens.sizes) {
      first_.push_back(first_.back() + (n > slack ? (n - 1 - slack) / context : 0));
    }
  }

  std::size_t size() const noexcept { return first_.back(); }
  // The context + 1 tokens of window `index`. REQUIRES: index < size(), offset <= slack.
  void read(std::size_t index, std::size_t offset, std::span<std::int64_t> out) const {
    const auto after = std::ranges::upper_bound(first_, index);
    const auto run = static_cast<std::size_t>(after - first_.begin()) - 1;
    tokens_.copy(run, offset + (index - first_[run]) * context_, out);
  }

 private:
  const Tokens& tokens_;
  std::size_t context_;
  std::vector<std::size_t> first_;  // window of each run, then the number of all windows
};

// The data of the task lm: bytes of text, or shards if --vocab is given.
struct LmData {
  Tokens train, valid;
  std::shared_ptr<const Vocabulary> vocabulary;  // null: bytes
  DataFacts facts;
};

Tokens tokens_of(std::vector<std::uint8_t> bytes) {
  const auto kept = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
  return {{kept->size()}, [kept](std::size_t, std::size_t begin, std::span<std::int64_t> out) {
            std::copy_n(kept->data() + begin, out.size(), out.begin());
          }};
}

// part of a file: all of it, the first nine tenths, or the rest
enum class Side { kAll, kFront, kBack };

// Reads from disk and checks only the tokens in use.
Tokens tokens_of(std::vector<Shard> shards, Side side, std::size_t vocabulary) {
  Tokens tokens;
  std::size_t first = 0;
  for (const Shard& shard : shards) {
    const std::size_t n = shard.tokens().size(), border = n - (n + 9) / 10;
    first = side == Side::kBack ? border : 0;
    tokens.sizes.push_back(side == Side::kFront ? border : n - first);
  }
  const auto kept = std::make_shared<const std::vector<Shard>>(std::move(shards));
  tokens.copy = [=](std::size_t run, std::size_t begin, std::span<std::int64_t> out) {
    const Shard& shard = kept->at(run);
    shard.check(first + begin, out.size(), vocabulary);
    std::copy_n(shard.tokens().data() + first + begin, out.size(), out.begin());
  };
  return tokens;
}

std::int64_t as_fact(std::size_t n) { return static_cast<std::int64_t>(n); }

LmData bytes_of(TextCorpus corpus) {
  LmData data;
  data.train = tokens_of(std::move(corpus.train));
  data.valid = tokens_of(std::move(corpus.valid));
  data.facts = {corpus.source,
                hex16(corpus.hash),
                {{"files", as_fact(corpus.n_files)},
                 {"train_bytes", as_fact(data.train.total())},
                 {"valid_bytes", as_fact(data.valid.total())}}};
  return data;
}

LmData shards_of(const std::filesystem::path& path, const std::string& folder) {
  if (path.empty()) {
    throw DataError("--vocab needs --data: shards of tokens (`pride tokenize` makes them)");
  }
  LmData data;
  data.vocabulary = std::make_shared<Vocabulary>(folder);
  const std::size_t size = data.vocabulary->size();
  ShardSet shards = open_shards(path);
  const bool one = !std::filesystem::is_directory(path);
  const std::size_t files = one ? 1 : shards.train.size() + shards.valid.size();
  // the same tokens of another vocabulary are other data
  const std::uint64_t hash = mix64(hash_of(shards), data.vocabulary->hash());
  data.train = tokens_of(std::move(shards.train), one ? Side::kFront : Side::kAll, size);
  data.valid = tokens_of(std::move(shards.valid), one ? Side::kBack : Side::kAll, size);
  data.facts = {concat(path.string(), " (", files, one ? " shard, first 90 %" : " shards",
                       one ? " of its tokens to train)" : ")"),
                hex16(hash),
                {{"files", as_fact(files)},
                 {"vocabulary", folder},
                 {"train_tokens", as_fact(data.train.total())},
                 {"valid_tokens", as_fact(data.valid.total())}}};
  return data;
}

// Throws DataError.
LmData load_lm_data(const TrainOptions& options) {
  const std::filesystem::path path = options.data;
  if (!options.vocab.empty()) return shards_of(path, options.vocab);
  return bytes_of(path.empty() ? load_default_text() : load_text(path));
}

constexpr std::size_t kEvalWindows = 16;  // per batch
constexpr std::int64_t kDefaultEvalBatches = 64;

// A sample is one window of context tokens and their successors. Windows lie side by side from an
// offset that each epoch draws anew, so a model sees every token in every position over time.
class TextTask final : public Task {
 public:
  TextTask(const TrainOptions& options, LmData data)
      : model_(model_maker(options, {.classes = n_tokens(data.vocabulary.get())}, "gpt-small")),
        seed_(options.seed),
        data_(std::move(data)),
        train_(data_.train, context(), /*slack=*/context()),
        valid_(data_.valid, context(), /*slack=*/0) {
    PRIDE_CHECK(train_.size() > 0 && valid_.size() > 0, "lm: ", data_.train.total(), " ", unit(),
                " of training and ", data_.valid.total(),
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

  // Mean bytes of text per target of the evaluation; <|endoftext|> has none.
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
