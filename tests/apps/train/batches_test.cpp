// What enters a step: augmented images, text windows, the clipped gradient.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/io/temp_folder.h"
#include "pride/error.h"
#include "train/augment.h"
#include "train/clip.h"
#include "train/task.h"

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

TEST(TextTask, TargetsAreTheNextBytesAndWindowsDifferByEpoch) {
  const test::TempFolder folder;
  const auto file = folder.path() / "text";
  std::ofstream out(file, std::ios::binary);
  for (int i = 0; i < 5000; ++i) out << static_cast<char>('a' + i % 26);
  out.close();
  TrainOptions options;
  options.data = file.string();
  options.context = 16;
  const auto task = make_text_task(options);
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

TEST(TextTask, RefusesModelsAndTextsThatDoNotFit) {
  const test::TempFolder folder;
  const auto file = folder.path() / "text";
  std::ofstream(file) << std::string(300, 'x');
  TrainOptions options;
  options.data = file.string();
  EXPECT_THROW(make_text_task(options), InvalidArgument) << "context 128, 270 bytes to train";
  options.model = "vit-small";
  EXPECT_THROW(make_text_task(options), InvalidArgument);
}

TEST(Clip, ScalesDownToTheLimitAndNeverUp) {
  std::vector<float> g(100, 0.5F);
  EXPECT_NEAR(clip(g, 10), 5, 1e-12);
  EXPECT_EQ(g[0], 0.5F);
  EXPECT_NEAR(clip(g, 1), 5, 1e-12);
  EXPECT_NEAR(norm(g), 1, 1e-6);
}

TEST(Clip, LeavesWhatIsNotFiniteForTheOptimizerToName) {
  std::vector<float> g(100, 0.5F);
  g[37] = std::numeric_limits<float>::infinity();
  clip(g, 1);
  EXPECT_EQ(g[0], 0.5F);
}

}  // namespace
}  // namespace pride::app
