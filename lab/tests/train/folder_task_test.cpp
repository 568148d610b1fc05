// The task imagenet and its batches: views, targets, MixUp, label smoothing.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "pride/train/task.h"
#include "support/temp_folder.h"
#include "train/evaluation.h"
#include "train/images.h"
#include "train/models/vit.h"
#include "train/streams.h"
#include "train/vision/view.h"
#include "train_names.h"
#include "vision/jpeg_files.h"

namespace pride::app {
namespace {

std::string jpeg(int i) {
  return test::make_jpeg({.width = 30 + i, .height = 40},
                         [i](int x, int y, int c) { return test::landscape(x + 5 * i, y, c); });
}

// a: 0 and 1, b: 2; val a: 3, val b: 4
class FolderTask : public testing::Test {
 protected:
  FolderTask() {
    folder_.write("train/a/0.jpg", jpeg(0));
    folder_.write("train/a/1.jpg", jpeg(1));
    folder_.write("train/b/2.jpg", jpeg(2));
    folder_.write("val/a/3.jpg", jpeg(3));
    folder_.write("val/b/4.jpg", jpeg(4));
    options_.task = "imagenet";
    options_.data = folder_.path().string();
    options_.model = "vit-small";
    options_.image_size = 32;
    options_.seed = 9;
  }

  RgbImage image(const std::string& name) const { return read_jpeg(folder_.path() / name); }

  test::TempFolder folder_;
  TrainOptions options_;
};

at::Tensor tensor_of(const std::vector<float>& values) {
  return at::tensor(values).view({3, 32, 32});
}

TEST_F(FolderTask, ShowsCropsOfTheSeedTheSampleAndTheEpoch) {
  const std::vector<Draw> draws = {{.sample = 2, .epoch = 5}, {.sample = 0, .epoch = 1}};
  const Batch batch = make_task(options_)->train_batch(draws);
  std::vector<float> view(view_floats(32));
  train_view(image("train/b/2.jpg"), 32, {9, streams::kCrop, 2, 5}, view);
  EXPECT_TRUE(at::equal(batch.input[0], tensor_of(view)));
  train_view(image("train/a/0.jpg"), 32, {9, streams::kCrop, 0, 1}, view);
  EXPECT_TRUE(at::equal(batch.input[1], tensor_of(view)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({1L, 0L})));
}

TEST_F(FolderTask, EvaluatesCentresOfTheOtherSplit) {
  const auto task = make_task(options_);
  ASSERT_EQ(task->n_eval_batches(), 1U);
  const Batch batch = task->eval_batch(0);
  std::vector<float> view(view_floats(32));
  eval_view(image("val/b/4.jpg"), 32, view);
  EXPECT_TRUE(at::equal(batch.input[1], tensor_of(view)));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({0L, 1L})));
}

TEST_F(FolderTask, QueueGivesBatchesAsAskedAndOutlivesErrors) {
  const auto task = make_task(options_);
  const std::vector<Draw> all = {{.sample = 0}, {.sample = 1}, {.sample = 2}};
  const auto queue = task->make_queue();
  queue->ask_train(std::span(all).first(2));
  queue->ask_eval(0);
  queue->ask_train(std::span(all).last(1));
  EXPECT_TRUE(at::equal(queue->take().input, task->train_batch(std::span(all).first(2)).input));
  EXPECT_TRUE(at::equal(queue->take().input, task->eval_batch(0).input));
  EXPECT_TRUE(at::equal(queue->take().input, task->train_batch(std::span(all).last(1)).input));
  folder_.write("train/a/1.jpg", "no");
  queue->ask_train(all);
  queue->ask_eval(0);
  test::expect_error<DataError>([&] { queue->take(); }, {"train/a/1.jpg: not a JPEG"});
  EXPECT_TRUE(at::equal(queue->take().input, task->eval_batch(0).input));
  queue->ask_train(all);  // these are never awaited
}

TEST_F(FolderTask, MakesAModelForItsClassesAndSize) {
  const auto task = make_task(options_);
  EXPECT_EQ(number_of(task->model().size, "classes"), 2);
  EXPECT_EQ(task->model().make()->logits(task->eval_batch(0).input).sizes(),
            (at::IntArrayRef{2, 2}));
  options_.model = "gpt2";
  test::expect_error<InvalidArgument>([&] { make_task(options_); },
                                      {"--model gpt2: for imagenet", "vit-s16"});
}

// Published: timm's vit_small_patch16_224 and vit_base_patch16_224.
TEST(VitPresets, HaveThePublishedSizes) {
  for (const auto& [name, n] : {std::pair{"vit-s16", 22050664}, {"vit-b16", 86567656}}) {
    const ModelInput input{.kind = ModelInput::Kind::kImages, .classes = 1000, .image_size = 224};
    EXPECT_EQ(model_maker({}, input, name).make()->n_parameters(), n) << name;
  }
}

Batch numbers(std::int64_t rows) {
  return {at::arange(rows * 3 * 4, at::kFloat).view({rows, 3, 2, 2}), at::arange(rows, at::kLong)};
}

TEST(MixUp, AddsEachRowToItsMirrorInOneShare) {
  const Batch before = numbers(5);
  Batch batch = numbers(5);
  mix_up(0.5, PhiloxStream(1, 1, 1), batch);
  EXPECT_GT(batch.share, 0);
  EXPECT_LT(batch.share, 1);
  EXPECT_TRUE(at::equal(batch.target, before.target));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(batch.other[i].item<std::int64_t>(), 4 - i);
    const at::Tensor want = before.input[i] * batch.share + before.input[4 - i] * (1 - batch.share);
    EXPECT_TRUE(at::allclose(batch.input[i], want)) << i;
  }
}

TEST(MixUp, DrawsSharesFromABetaDistribution) {
  constexpr int kDraws = 4000;
  for (const double alpha : {0.2, 0.5, 1.0}) {
    double sum = 0, squares = 0;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      Batch batch = numbers(1);
      mix_up(alpha, PhiloxStream(3, 1, i), batch);
      sum += batch.share;
      squares += (batch.share - 0.5) * (batch.share - 0.5);
    }
    // Beta(a, a): variance 1 / (4 (2 a + 1)), at most 1 / 4
    EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.5 / std::sqrt(kDraws)) << alpha;
    EXPECT_NEAR(squares / kDraws, 0.25 / (2 * alpha + 1), 0.008) << alpha;
  }
}

// A model whose logits are given.
class Fixed final : public Model {
 public:
  at::Tensor logits(const at::Tensor& input) override { return input; }
};

TEST(MeanLoss, SmoothsTargetsAndMixesThem) {
  Fixed model;
  const at::Tensor logits = at::arange(8, at::kFloat).mul(0.7).sin().view({2, 4});
  const at::Tensor logs = at::log_softmax(logits, 1);
  const auto at_row = [&](int row, int column) { return -logs[row][column].item<double>(); };
  Batch batch{logits, at::tensor({3L, 0L})};
  const double plain = (at_row(0, 3) + at_row(1, 0)) / 2;
  EXPECT_NEAR(mean_loss(model, batch).item<double>(), plain, 1e-6);
  const double uniform = -logs.mean().item<double>();
  EXPECT_NEAR(mean_loss(model, batch, 0.1).item<double>(), 0.9 * plain + 0.1 * uniform, 1e-6);
  batch.other = at::tensor({1L, 2L});
  batch.share = 0.3;
  const double mixed = 0.3 * plain + 0.7 * (at_row(0, 1) + at_row(1, 2)) / 2;
  EXPECT_NEAR(mean_loss(model, batch).item<double>(), mixed, 1e-6);
}

}  // namespace
}  // namespace pride::app
