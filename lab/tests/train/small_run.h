// Small runs of the trainer: a model of two weights, which learns the signs of numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>

#include "pride/error.h"
#include "pride/train/model.h"
#include "pride/train/trainer.h"
#include "train/signs.h"
#include "train_names.h"

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

// All that a run reports of its steps and evaluations, but for times.
class Log final : public Observer {
 public:
  void on_step(const WorldStep& step) override {
    text += concat("step ", step.step, " of ", step.ranks.size(), ":");
    for (const RankStep& r : step.ranks) {
      text += concat(" ", std::bit_cast<std::uint64_t>(r.loss), "/", r.bytes_sent, "/",
                     r.bytes_received, "/", r.skipped, "/", r.absent);
    }
    text += "\n";
  }
  void on_eval(std::int64_t step, const Facts& metrics, double) override {
    const double loss = number_of(metrics, "loss");
    text += concat("evaluation ", step, ": ", std::bit_cast<std::uint64_t>(loss), "\n");
  }
  std::string text;
};

}  // namespace pride::app::test
