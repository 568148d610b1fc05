// Inputs of a step: augmented images, text windows, the clipped gradient.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "pride/error.h"
#include "pride/train/task.h"
#include "support/temp_folder.h"
#include "text/small_vocabulary.h"
#include "train/images.h"
#include "train/replica.h"
#include "train_names.h"

namespace pride::app {
namespace {

ImageSet one_image() {
  ImageSet set{
      .channels = 3, .height = 32, .width = 32, .classes = 10, .pixels = {}, .labels = {4}};
  for (int i = 0; i < 3 * 32 * 32; ++i) set.pixels.push_back(static_cast<std::uint8_t>(i % 251));
  return set;
}

// the pixel that the value came from
int pixel_of(float value, std::size_t channel) {
  constexpr double kMean[] = {0.4914, 0.4822, 0.4465}, kDeviation[] = {0.2470, 0.2435, 0.2616};
  return static_cast<int>(std::lround((value * kDeviation[channel] + kMean[channel]) * 255));
}

TEST(Augment, IsACropWithinFourPixelsAndSometimesAFlip) {
  const ImageSet set = one_image();
  std::vector<float> out(image_floats(set));
  std::set<std::array<int, 3>> seen;
  for (std::uint32_t epoch = 0; epoch < 400; ++epoch) {
    augment(set, {.sample = 0, .epoch = epoch}, 1, out);
    bool found = false;
    for (int flip = 0; flip < 2 && !found; ++flip) {
      for (int down = -4; down <= 4 && !found; ++down) {
        for (int right = -4; right <= 4 && !found; ++right) {
          bool same = true;
          for (int i = 0; i < 3 * 32 * 32 && same; ++i) {
            const int channel = i / 1024, y = i / 32 % 32 + down;
            const int x = (flip == 1 ? 31 - i % 32 : i % 32) + right;
            const bool inside = y >= 0 && y < 32 && x >= 0 && x < 32;
            const int want =
                inside ? set.pixels[static_cast<std::size_t>(channel * 1024 + y * 32 + x)] : 0;
            same = pixel_of(out[static_cast<std::size_t>(i)], static_cast<std::size_t>(channel)) ==
                   want;
          }
          found = same;
          if (same) seen.insert({flip, down, right});
        }
      }
    }
    ASSERT_TRUE(found) << "epoch " << epoch << " is no crop of the padded image";
  }
  // 162 crops: 400 draws reach 148 of them on average
  EXPECT_GT(seen.size(), 120U);
}

TEST(Augment, DependsOnSeedSampleAndEpochAlone) {
  const ImageSet set = one_image();
  std::vector<float> a(image_floats(set)), b(a), c(a);
  augment(set, {.sample = 0, .epoch = 3}, 1, a);
  augment(set, {.sample = 0, .epoch = 3}, 1, b);
  augment(set, {.sample = 0, .epoch = 4}, 1, c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

class TextTask : public testing::Test {
 protected:
  // From now on data are shards.
  void use_tokens() { options_.vocab = test::write_small_vocabulary(folder_).string(); }
  std::unique_ptr<Task> task_of(const std::string& data, std::int64_t context) {
    options_.data = folder_.write("data.bin", data).string();
    options_.context = context;
    return make_task(options_);
  }

  test::TempFolder folder_;
  TrainOptions options_;
};

TEST_F(TextTask, TargetsAreTheNextBytesAndWindowsDifferByEpoch) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + i % 26);
  const auto task = task_of(text, 16);
  const std::vector<Draw> draws = {{.sample = 0}, {.sample = 7}, {.sample = 7, .epoch = 1}};
  const Batch batch = task->train_batch(draws);
  EXPECT_EQ(batch.input.sizes(), (at::IntArrayRef{3, 16}));
  const at::Tensor next = (batch.input - 'a' + 1).remainder(26) + 'a';
  EXPECT_TRUE(at::equal(next.view({-1}), batch.target));
  EXPECT_FALSE(at::equal(batch.input[1], batch.input[2])) << "the epochs' offsets are equal";
  // 500 validation bytes: 31 windows of 16
  EXPECT_EQ(task->n_eval_batches(), 2U);
  EXPECT_EQ(task->eval_batch(1).input.size(0), 15);
}

TEST_F(TextTask, RefusesModelsAndTextsThatDoNotFit) {
  EXPECT_THROW(task_of(std::string(300, 'x'), 128), InvalidArgument) << "270 bytes to train";
  options_.model = "vit-small";
  EXPECT_THROW(task_of(std::string(5000, 'x'), 16), InvalidArgument);
}

// Shards whose tokens are the text's bytes, written by hand, are the same data as the text.
TEST_F(TextTask, ShardsGiveTheWindowsOfTheText) {
  std::string text, tokens;
  for (int i = 0; i < 5000; ++i) {
    text += static_cast<char>(1 + i * i % 251);              // no NUL, which no text has
    tokens += {static_cast<char>(254 - i * i % 251), '\0'};  // the small vocabulary's order
  }
  const auto a = task_of(text, 16);
  use_tokens();
  const auto b = task_of(tokens, 16);
  EXPECT_EQ(a->n_samples(), b->n_samples());
  EXPECT_EQ(a->n_eval_batches(), b->n_eval_batches());
  EXPECT_EQ(number_of(b->model().size, "vocabulary"), 269);
  const std::vector<Draw> draws = {{.sample = 0}, {.sample = 7, .epoch = 1}, {.sample = 278}};
  const auto check = [](const Batch& x, const Batch& y) {
    EXPECT_TRUE(at::equal(255 - x.input, y.input));
    EXPECT_TRUE(at::equal(255 - x.target, y.target));
  };
  check(a->train_batch(draws), b->train_batch(draws));
  for (std::size_t i = 0; i < a->n_eval_batches(); ++i) check(a->eval_batch(i), b->eval_batch(i));
  // every token is one byte here, so both give the same for the same losses
  const EvalSums sums{.loss = 123.5, .correct = 1, .count = 48};
  EXPECT_EQ(number_of(a->eval_metrics(sums), "bits_per_byte"),
            number_of(b->eval_metrics(sums), "bits_per_byte"));
  EXPECT_DOUBLE_EQ(number_of(b->eval_metrics(sums), "perplexity"), std::exp(123.5 / 48));
  EXPECT_EQ(number_of(b->eval_metrics(sums), "tokens"), 48);
}

TEST_F(TextTask, CountsTheBytesBehindTokensForBitsPerByte) {
  use_tokens();
  // " the" (258, 4 bytes) and <|endoftext|> (268, none) in turn: two bytes a token
  std::string tokens;
  for (int i = 0; i < 400; ++i) tokens += {static_cast<char>(i % 2 == 0 ? 2 : 12), '\1'};
  const auto task = task_of(tokens, 8);
  const auto metrics = task->eval_metrics({.loss = 10, .correct = 0, .count = 20});
  EXPECT_DOUBLE_EQ(number_of(metrics, "bits_per_byte"), 0.5 / std::log(2.0) / 2);
}

TEST_F(TextTask, WindowsStayInTheirShardAndReachEveryShard) {
  use_tokens();
  options_.context = 4;
  // shard k holds token k only; sizes 8 (too short for a window), 9, 30
  for (const auto& [k, n] : {std::pair{1, 8}, {2, 9}, {3, 30}}) {
    std::string tokens;
    for (int i = 0; i < n; ++i) tokens += {static_cast<char>(k), '\0'};
    folder_.write(concat("data/train_", k, ".bin"), tokens);
  }
  folder_.write("data/val.bin", std::string(64, '\0'));
  options_.data = (folder_.path() / "data").string();
  const auto task = make_task(options_);
  ASSERT_EQ(task->n_samples(), 0U + 1 + 6);
  for (std::uint32_t epoch = 0; epoch < 20; ++epoch) {
    for (std::uint32_t sample = 0; sample < 7; ++sample) {
      const std::vector<Draw> draws = {{.sample = sample, .epoch = epoch}};
      const Batch batch = task->train_batch(draws);
      const int expected = sample == 0 ? 2 : 3;
      EXPECT_TRUE(batch.input.eq(expected).all().item<bool>()) << sample;
      EXPECT_TRUE(batch.target.eq(expected).all().item<bool>()) << sample;
    }
  }
}

TEST_F(TextTask, NamesATokenOutsideTheVocabulary) {
  use_tokens();
  std::string tokens(400, '\0');
  tokens[41] = '\7';  // token 20: 1792
  const auto task = task_of(tokens, 4);
  const auto read_all = [&] {
    for (std::uint32_t i = 0; i < task->n_samples(); ++i) {
      const std::vector<Draw> draws = {{.sample = i}};
      task->train_batch(draws);
    }
  };
  test::expect_error<DataError>(read_all, {"data.bin", "token 20 is 1792", "269"});
}

TEST_F(TextTask, NeedsDataForAVocabulary) {
  options_.vocab = "somewhere";
  test::expect_error<DataError>([&] { make_task(options_); }, {"--vocab needs --data"});
}

TEST(Clip, ScalesDownToTheLimitAndNeverUp) {
  std::vector<float> a(37, 0.5F), b(63, 0.5F);
  const std::vector<ConstTensor> g = {a, ConstTensor(), b};  // one without a gradient
  EXPECT_NEAR(norm(g), 5, 1e-12);
  EXPECT_EQ(clip_factor(norm(g), 10), 1.0F);
  EXPECT_EQ(clip_factor(norm(g), 1), 0.2F);
}

TEST(Clip, TakesTheNormOfNarrowGradientsAsOfTheSameNumbersInFloat32) {
  std::vector<float> wide(10000);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    wide[i] = std::sin(static_cast<float>(i));
  }
  std::vector<BFloat16> narrow(wide.size());
  to_bf16(wide, narrow);
  to_float(narrow, wide);
  EXPECT_EQ(norm(std::vector<ConstTensor>{narrow}), norm(std::vector<ConstTensor>{wide}));
}

TEST(Clip, LeavesWhatIsNotFiniteForTheOptimizerToName) {
  std::vector<float> g(100, 0.5F);
  g[37] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(clip_factor(norm(std::vector<ConstTensor>{g}), 1), 1.0F);
}

}  // namespace
}  // namespace pride::app
