// Questions with choices as batches of rows, and a model's scores of the choices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "pride/train/task.h"
#include "train/fewshot/prompt.h"

namespace pride::train {

// One row of a batch: a prompt, and the choice whose tokens are the targets.
struct ChoiceRow {
  std::span<const Token> prompt, choice;
};

// Rows padded at their ends to the longest one. Padding does not affect any target.
Batch batch_of(std::span<const ChoiceRow> rows);

// A row for every choice of every question.
Batch batch_of_choices(std::span<const EncodedQuestion> questions);

// The log-probability of every choice of every question: for each question, for each choice, the
// sum over its tokens in nats. `batch`: batch_of_choices(questions), on the model's device. No
// gradient.
std::vector<std::vector<double>> score_choices(Model& model,
                                               std::span<const EncodedQuestion> questions,
                                               const Batch& batch);

struct ScoreOptions {
  std::size_t batch = 8;  // questions
  int threads = 1;
  at::Device device = at::kCPU;
};

// score_choices() for any number of questions, batched by length. Scores do not depend on the
// number of threads. `done` is called after each batch, by one thread at a time, with the number of
// scored questions. Throws Error if the system cannot start the threads.
std::vector<std::vector<double>> score_all(Model& model, std::span<const EncodedQuestion> questions,
                                           const ScoreOptions& options,
                                           const std::function<void(std::size_t)>& done);

}  // namespace pride::train
