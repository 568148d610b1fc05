// Small runs of the trainer: a model of two weights, which learns the signs of numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include <memory>

#include "apps/train/signs.h"
#include "pride/train/model.h"
#include "pride/train/trainer.h"

namespace pride::app::test {
using namespace pride::train;

// Two classes of points on a line, by their sign.
class Line final : public Model {
 public:
  Line() : weight_(declare("weight", {2, 1}, Init::normal(0.1))) {}
  at::Tensor logits(const at::Tensor& input) override {
    return at::matmul(input.to(weight_.scalar_type()), weight_.t()).to(at::kFloat);
  }

 private:
  at::Tensor weight_;
};

inline std::shared_ptr<Signs> signs(const TrainOptions& options) {
  return std::make_shared<Signs>(
      model_maker(options, {.kind = ModelInput::Kind::kTokens, .classes = 2}, "line"));
}

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
