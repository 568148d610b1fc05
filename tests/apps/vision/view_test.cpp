// Crops: within the image, of the areas and ratios that their definition says; the views of them.
// SPDX-License-Identifier: Apache-2.0
// Oracle: torchvision's definition; means of uniform distributions, at 5 standard errors.
#include "train/vision/view.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/vision/jpeg_files.h"
#include "train_names.h"

namespace pride::app {
namespace {

constexpr std::uint64_t kSeed = 3;

PhiloxStream stream(std::uint64_t a) { return {kSeed, 1, a}; }

TEST(RandomCrop, StaysInsideAndKeepsItsAreaAndRatio) {
  for (const auto& [width, height] : {std::pair{500, 375}, {375, 500}, {64, 64}, {3, 2}, {1, 1}}) {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      PhiloxStream bits = stream(i);
      const Box box = random_crop(width, height, bits);
      ASSERT_GE(box.left, 0);
      ASSERT_GE(box.top, 0);
      ASSERT_GE(box.width, 1);
      ASSERT_GE(box.height, 1);
      ASSERT_LE(box.left + box.width, width);
      ASSERT_LE(box.top + box.height, height);
      if (width < 64) continue;
      // sides are rounded to pixels
      const double area = 1.0 * box.width * box.height / width / height;
      ASSERT_GT(area, 0.08 * 0.94);
      const double ratio = 1.0 * box.width / box.height;
      ASSERT_GT(ratio, 0.75 * 0.94);
      ASSERT_LT(ratio, 1.34 * 1.06);
    }
  }
}

// In a square most tries fit; conditional on that, small areas are as likely as drawn, and both
// orientations are alike.
TEST(RandomCrop, HasTheDistributionOfItsDefinition) {
  constexpr int kDraws = 20000, kSide = 1000;
  double small = 0, log_ratio = 0, left = 0;
  int n_small = 0;
  for (int i = 0; i < kDraws; ++i) {
    PhiloxStream bits = stream(static_cast<std::uint64_t>(i));
    const Box box = random_crop(kSide, kSide, bits);
    const double area = 1.0 * box.width * box.height / kSide / kSide;
    log_ratio += std::log(1.0 * box.width / box.height);
    if (area > 0.5) continue;  // any ratio fits below 3/4
    ++n_small;
    small += area;
    left += 1.0 * box.left / (kSide - box.width);
  }
  // uniform on [0.08, 0.5]: mean 0.29, deviation 0.42 / sqrt(12)
  EXPECT_NEAR(small / n_small, 0.29, 5 * 0.1212 / std::sqrt(n_small));
  EXPECT_NEAR(left / n_small, 0.5, 5 * 0.2887 / std::sqrt(n_small));
  EXPECT_NEAR(log_ratio / kDraws, 0, 5 * 0.167 / std::sqrt(kDraws));
  // a try of more than half the area fits less often: its share is below 0.5 / 0.92
  EXPECT_GT(n_small, kDraws * 0.42 / 0.92);
  EXPECT_LT(n_small, kDraws * 0.60);
}

TEST(RandomCrop, FallsBackToTheCentreWhereNothingFits) {
  PhiloxStream bits = stream(1);
  EXPECT_EQ(random_crop(1000, 30, bits), (Box{480, 0, 40, 30}));
  EXPECT_EQ(random_crop(30, 1000, bits), (Box{0, 480, 30, 40}));
  EXPECT_EQ(random_crop(1, 1000, bits), (Box{0, 499, 1, 1}));
}

TEST(CentreCrop, IsTorchvisionsResizeAndCentreCrop) {
  const Resize wide = centre_crop(500, 375, 224);
  EXPECT_EQ(wide.from, (Box{0, 0, 500, 375}));
  EXPECT_EQ(wide.width, 341);  // 256 * 500 / 375 = 341.3
  EXPECT_EQ(wide.height, 256);
  EXPECT_EQ(wide.window, (Box{58, 16, 224, 224}));  // 58.5 goes to the even neighbour
  const Resize tall = centre_crop(100, 400, 224);
  EXPECT_EQ(tall.width, 256);
  EXPECT_EQ(tall.height, 1024);
  EXPECT_EQ(tall.window, (Box{16, 400, 224, 224}));
  const Resize small = centre_crop(32, 32, 32);
  EXPECT_EQ(small.width, 37);
  EXPECT_EQ(small.window, (Box{2, 2, 32, 32}));
}

RgbImage slope() {
  RgbImage image{.width = 80, .height = 60};
  for (int i = 0; i < 80 * 60; ++i) image.pixels.insert(image.pixels.end(), 3, i % 80 * 3);
  return image;
}

TEST(TrainView, FlipsHalfOfTheImages) {
  const RgbImage image = slope();
  std::vector<float> out(view_floats(32));
  int flips = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    train_view(image, 32, stream(i), out);
    flips += out[0] > out[31] ? 1 : 0;
  }
  EXPECT_NEAR(flips, 500, 5 * std::sqrt(250));
}

TEST(TrainView, DependsOnItsStreamAlone) {
  const RgbImage image = slope();
  std::vector<float> a(view_floats(32)), b(a), c(a);
  train_view(image, 32, stream(1), a);
  train_view(image, 32, stream(1), b);
  train_view(image, 32, stream(2), c);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST(EvalView, IsNormalisedPerChannelAndPlane) {
  RgbImage image{.width = 40, .height = 30};
  for (int i = 0; i < 40 * 30; ++i) image.pixels.insert(image.pixels.end(), {0, 128, 255});
  std::vector<float> out(view_floats(16));
  eval_view(image, 16, out);
  const double want[] = {(0 - 0.485) / 0.229, (128 / 255.0 - 0.456) / 0.224, (1 - 0.406) / 0.225};
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_FLOAT_EQ(out[i], want[i / 256]) << i;
}

}  // namespace
}  // namespace pride::app
