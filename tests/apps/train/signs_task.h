// A task and a model of a program of its own: the signs of 64 numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "pride/train/model.h"
#include "pride/train/task.h"
#include "pride/train/trainer.h"

namespace pride::app::test {
using namespace pride::train;

// Two classes of points on a line, by their sign.
class Line final : public Model {
 public:
  Line() : weight_(declare("weight", {2, 1}, Init::normal(0.1))) {}
  at::Tensor logits(const at::Tensor& input) override { return at::matmul(input, weight_.t()); }

 private:
  at::Tensor weight_;
};

inline std::atomic<int> batches_made = 0;

class Signs final : public Task {
 public:
  explicit Signs(const TrainOptions& options)
      : model_(model_maker(options, {.kind = ModelInput::Kind::kTokens, .classes = 2}, "line")) {}

  std::string name() const override { return "signs"; }
  const ModelMaker& model() const override { return model_; }
  DataFacts data() const override {
    return {"numbers", "signs-1", {{"numbers", std::int64_t{64}}}};
  }
  std::size_t n_samples() const override { return 64; }
  std::size_t n_eval_batches() const override { return 2; }
  Batch train_batch(std::span<const Draw> draws) const override {
    ++batches_made;
    std::vector<double> x;
    for (const Draw& draw : draws) x.push_back(draw.sample - 31.5);
    return batch_of(at::tensor(x, at::kFloat));
  }
  Batch eval_batch(std::size_t index) const override {
    return batch_of(at::arange(-3.5, 4.5) * (index == 0 ? 1 : -1));
  }

 private:
  static Batch batch_of(const at::Tensor& x) { return {x.view({-1, 1}), x.gt(0).to(at::kLong)}; }

  ModelMaker model_;
};

inline TrainOptions small_run() {
  TrainOptions options{.task = "", .method = "lion", .lr = 0.05, .workers = 3, .batch = 4};
  options.steps = 4;
  options.eval_every = 2;
  return options;
}

// Once a process, for whichever test is first.
inline void register_line() {
  static const bool done = [] {
    const auto line = [](const TrainOptions&, const ModelInput& input) {
      EXPECT_EQ(input.classes, 2);
      return ModelMaker{.name = "line", .make = [] { return std::make_unique<Line>(); }};
    };
    register_model({"line", "a line", ModelInput::Kind::kTokens, line});
    return true;
  }();
  EXPECT_TRUE(done);
}

}  // namespace pride::app::test
