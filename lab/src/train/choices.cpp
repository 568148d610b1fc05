// SPDX-License-Identifier: Apache-2.0
#include "train/choices.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "pride/train/trainer.h"
#include "train/evaluation.h"
#include "train/torch_errors.h"
#include "train/vision/prefetcher.h"

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

// tokens of the question's longest row, which determine its cost
std::size_t size_of(const EncodedQuestion& question) {
  std::size_t longest = 0;
  for (const auto& choice : question.choices) longest = std::max(longest, choice.size());
  return question.prompt.size() + longest;
}

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
    // the logits at the prompt's last token predict the first token of the choice
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
  const c10::NoGradGuard no_grad;
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
  std::vector<std::size_t> order(questions.size());  // longest first
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return size_of(questions[i]); });
  std::vector<EncodedQuestion> sorted;
  for (const std::size_t i : order) sorted.push_back(questions[i]);

  std::mutex mutex;  // guards scores and n_done
  std::vector<std::vector<double>> scores(questions.size());
  std::size_t n_done = 0;
  Prefetcher threads(options.threads - 1);  // this thread works, too
  threads.begin((sorted.size() + options.batch - 1) / options.batch, [&](std::size_t b) {
    pin_threads();
    const std::size_t begin = b * options.batch;
    const auto asked = std::span<const EncodedQuestion>(sorted).subspan(
        begin, std::min(options.batch, sorted.size() - begin));
    auto found = with_short_errors([&] {
      return score_choices(model, asked, moved_to(options.device, batch_of_choices(asked)));
    });
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < found.size(); ++i) scores[order[begin + i]] = std::move(found[i]);
    done(n_done += found.size());
  });
  threads.wait();
  return scores;
}

}  // namespace pride::train
