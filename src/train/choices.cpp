// SPDX-License-Identifier: Apache-2.0
#include "train/choices.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "pride/error.h"
#include "pride/train/trainer.h"
#include "train/evaluation.h"
#include "train/process.h"
#include "train/torch_errors.h"

namespace pride::train {
namespace {

// tokens that are read: all but the last one
std::int64_t length_of(const ChoiceRow& row) {
  return static_cast<std::int64_t>(row.prompt.size() + row.choice.size()) - 1;
}

std::vector<ChoiceRow> rows_of(std::span<const EncodedQuestion> questions) {
  std::vector<ChoiceRow> rows;
  for (const EncodedQuestion& question : questions) {
    for (const std::vector<Token>& choice : question.choices) {
      rows.push_back({question.prompt, choice});
    }
  }
  return rows;
}

// what a question costs
std::size_t size_of(const EncodedQuestion& question) {
  std::size_t longest = 0;
  for (const auto& choice : question.choices) longest = std::max(longest, choice.size());
  return question.prompt.size() + longest;
}

// Deals out batches to threads, and keeps the first error.
class Scoring {
 public:
  Scoring(Model& model, std::span<const EncodedQuestion> questions, const ScoreOptions& options,
          const std::function<void(std::size_t)>& done)
      : model_(model), options_(options), done_(done), scores_(questions.size()) {
    order_.resize(questions.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::stable_sort(order_, std::ranges::greater(),
                             [&](std::size_t i) { return size_of(questions[i]); });
    for (const std::size_t i : order_) sorted_.push_back(questions[i]);
  }

  std::vector<std::vector<double>> run() {
    std::vector<std::thread> threads;
    try {
      for (int t = 1; t < options_.threads; ++t) threads.emplace_back([this] { work(); });
      work();
    } catch (const std::exception& error) {  // the system has no more
      stop(std::make_exception_ptr(
          Error(concat("only ", threads.size() + 1, " of ", options_.threads,
                       " threads could be started: ", error.what()))));
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    return std::move(scores_);
  }

 private:
  void work() noexcept {
    try {
      pin_threads();
      for (;;) {
        const std::size_t begin = next_.fetch_add(options_.batch);
        if (begin >= sorted_.size()) return;
        score(begin, std::min(options_.batch, sorted_.size() - begin));
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  void stop(std::exception_ptr error) noexcept {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    next_ = sorted_.size();  // nobody begins another batch
  }

  void score(std::size_t begin, std::size_t n) {
    const auto questions = std::span<const EncodedQuestion>(sorted_).subspan(begin, n);
    auto found = with_short_errors([&] {
      const Batch batch = moved_to(options_.device, batch_of_choices(questions));
      return score_choices(model_, questions, batch);
    });
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < n; ++i) scores_[order_[begin + i]] = std::move(found[i]);
    n_done_ += n;
    done_(n_done_);
  }

  Model& model_;
  ScoreOptions options_;
  const std::function<void(std::size_t)>& done_;
  std::vector<std::size_t> order_;       // longest first
  std::vector<EncodedQuestion> sorted_;  // in that order
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;  // of what follows
  std::vector<std::vector<double>> scores_;
  std::size_t n_done_ = 0;
  std::exception_ptr error_;
};

}  // namespace

Batch batch_of(std::span<const ChoiceRow> rows) {
  std::int64_t longest = 0, targets = 0;
  for (const ChoiceRow& row : rows) {
    longest = std::max(longest, length_of(row));
    targets += static_cast<std::int64_t>(row.choice.size());
  }
  const auto n = static_cast<std::int64_t>(rows.size());
  const Batch batch = {at::zeros({n, longest}, at::kLong), at::empty({targets}, at::kLong),
                       at::empty({targets}, at::kLong)};
  auto* target = batch.target.data_ptr<std::int64_t>();
  auto* place = batch.places.data_ptr<std::int64_t>();
  for (std::int64_t r = 0; r < n; ++r) {
    const ChoiceRow& row = rows[static_cast<std::size_t>(r)];
    std::int64_t* input = batch.input.data_ptr<std::int64_t>() + r * longest;
    std::ranges::copy(row.choice.first(row.choice.size() - 1),
                      std::ranges::copy(row.prompt, input).out);
    target = std::ranges::copy(row.choice, target).out;
    // the first token of the choice is guessed where the prompt's last one is read
    std::int64_t at = r * longest + static_cast<std::int64_t>(row.prompt.size()) - 1;
    for (std::size_t i = 0; i < row.choice.size(); ++i) *place++ = at++;
  }
  return batch;
}

Batch batch_of_choices(std::span<const EncodedQuestion> questions) {
  return batch_of(rows_of(questions));
}

std::vector<std::vector<double>> score_choices(Model& model,
                                               std::span<const EncodedQuestion> questions,
                                               const Batch& batch) {
  const at::NoGradGuard no_grad;
  const at::Tensor losses = target_losses(model, batch);
  const float* loss = losses.data_ptr<float>();
  std::vector<std::vector<double>> scores;
  for (const EncodedQuestion& question : questions) {
    scores.emplace_back();
    for (const std::vector<Token>& choice : question.choices) {
      scores.back().push_back(-std::accumulate(loss, loss + choice.size(), 0.0));
      loss += choice.size();
    }
  }
  return scores;
}

std::vector<std::vector<double>> score_all(Model& model, std::span<const EncodedQuestion> questions,
                                           const ScoreOptions& options,
                                           const std::function<void(std::size_t)>& done) {
  return Scoring(model, questions, options, done).run();
}

}  // namespace pride::train
