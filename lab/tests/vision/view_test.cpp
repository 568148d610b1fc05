// Crops: within the image, of the areas and ratios that their definition says; the views of them.
// Oracle: torchvision's definition; means of uniform distributions, at 5 standard errors. Resizing
// against sums of a triangle in double precision, written from its definition.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "pride/error.h"
#include "train/vision/view.h"
#include "train_names.h"
#include "vision/jpeg_files.h"

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

// half a unit for each of the two roundings to bytes
constexpr double kRounding = 1.001;

RgbImage noise(int width, int height, unsigned seed = 5) {
  RgbImage image{.width = width, .height = height};
  std::mt19937 random(seed);
  for (int i = 0; i < 3 * width * height; ++i) {
    image.pixels.push_back(static_cast<std::uint8_t>(random() % 256));
  }
  return image;
}

std::vector<std::uint8_t> resized(const RgbImage& image, const Resize& resize) {
  std::vector<std::uint8_t> out(
      static_cast<std::size_t>(3 * resize.window.width * resize.window.height));
  resample(image, resize, out);
  return out;
}

Resize whole(const RgbImage& image, int width, int height) {
  return {{0, 0, image.width, image.height}, width, height, {0, 0, width, height}};
}

// the weights of all inputs for one output: a triangle around its centre
std::vector<double> triangle(int in, int out, int i) {
  const double scale = static_cast<double>(in) / out, wide = scale > 1 ? scale : 1;
  std::vector<double> weights(static_cast<std::size_t>(in));
  double sum = 0;
  for (int x = 0; x < in; ++x) {
    const double distance = std::abs(x + 0.5 - (i + 0.5) * scale) / wide;
    sum += weights[static_cast<std::size_t>(x)] = distance < 1 ? 1 - distance : 0;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

double exact(const RgbImage& image, const Resize& resize, int x, int y, int c) {
  const auto columns = triangle(resize.from.width, resize.width, x);
  const auto rows = triangle(resize.from.height, resize.height, y);
  double sum = 0;
  for (int v = 0; v < resize.from.height; ++v) {
    for (int u = 0; u < resize.from.width; ++u) {
      const auto at = 3 * ((resize.from.top + v) * image.width + resize.from.left + u) + c;
      sum += rows[static_cast<std::size_t>(v)] * columns[static_cast<std::size_t>(u)] *
             image.pixels[static_cast<std::size_t>(at)];
    }
  }
  return sum;
}

void expect_exact(const RgbImage& image, const Resize& resize) {
  const auto out = resized(image, resize);
  for (int i = 0; i < static_cast<int>(out.size()); ++i) {
    const int x = i / 3 % resize.window.width, y = i / 3 / resize.window.width;
    const double want = exact(image, resize, resize.window.left + x, resize.window.top + y, i % 3);
    ASSERT_NEAR(out[static_cast<std::size_t>(i)], want, kRounding)
        << resize.from.width << " x " << resize.from.height << " to " << resize.width << " x "
        << resize.height << ", at " << x << ", " << y;
  }
}

TEST(Resample, IsTheTrianglesSumForAnySizes) {
  for (const auto& [in, out] :
       {std::pair{40, 17}, {17, 40}, {30, 10}, {10, 30}, {33, 32}, {1, 9}, {9, 1}, {64, 3}}) {
    const RgbImage image = noise(in, out + 5);
    expect_exact(image, whole(image, out, in));
  }
}

TEST(Resample, ToTheSameSizeChangesNothing) {
  const RgbImage image = noise(31, 23);
  EXPECT_EQ(resized(image, whole(image, 31, 23)), image.pixels);
}

TEST(Resample, OfOneColourIsThatColour) {
  for (const int value : {0, 1, 127, 254, 255}) {
    RgbImage image{.width = 50, .height = 37};
    image.pixels.assign(50 * 37 * 3, static_cast<std::uint8_t>(value));
    for (const auto& [width, height] : {std::pair{224, 224}, {7, 11}, {50, 3}}) {
      for (const std::uint8_t got : resized(image, whole(image, width, height))) {
        ASSERT_EQ(got, value) << width << " x " << height;
      }
    }
  }
}

TEST(Resample, ByHalfWeighsFourPixelsOneThreeThreeOne) {
  RgbImage image{.width = 8, .height = 1};
  for (int x = 0; x < 8; ++x) image.pixels.insert(image.pixels.end(), 3, x == 3 ? 160 : 0);
  const auto out = resized(image, whole(image, 4, 1));
  // pixel 3 lies in the triangles of outputs 1 (pixels 1 to 4) and 2 (pixels 3 to 6)
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[3], 60);
  EXPECT_EQ(out[6], 20);
  EXPECT_EQ(out[9], 0);
}

TEST(Resample, TakesAWindowAsIfTheRestWereThere) {
  const RgbImage image = noise(57, 43);
  Resize resize = whole(image, 29, 31);
  const auto all = resized(image, resize);
  resize.window = {5, 9, 13, 11};
  const auto part = resized(image, resize);
  for (int y = 0; y < 11; ++y) {
    for (int i = 0; i < 13 * 3; ++i) {
      ASSERT_EQ(part[static_cast<std::size_t>(y * 39 + i)],
                all[static_cast<std::size_t>((y + 9) * 87 + 15 + i)]);
    }
  }
}

TEST(Resample, SeesNothingOutsideOfItsBox) {
  RgbImage image = noise(40, 40);
  const Resize resize{{11, 7, 20, 16}, 9, 30, {0, 0, 9, 30}};
  expect_exact(image, resize);
  const auto before = resized(image, resize);
  for (int y = 0; y < 40; ++y) {
    for (int x = 0; x < 40; ++x) {
      const bool inside = x >= 11 && x < 31 && y >= 7 && y < 23;
      for (int c = 0; c < 3 && !inside; ++c) {
        image.pixels[static_cast<std::size_t>(3 * (y * 40 + x) + c)] ^= 0xFF;
      }
    }
  }
  EXPECT_EQ(resized(image, resize), before);
}

TEST(Resample, RefusesBoxesOutside) {
  const RgbImage image = noise(10, 10);
  EXPECT_THROW(resized(image, {{1, 0, 10, 10}, 5, 5, {0, 0, 5, 5}}), InvalidArgument);
  EXPECT_THROW(resized(image, {{0, 0, 10, 10}, 5, 5, {0, 1, 5, 5}}), InvalidArgument);
  EXPECT_THROW(resized(image, {{0, 0, 0, 10}, 5, 5, {0, 0, 5, 5}}), InvalidArgument);
}

}  // namespace

}  // namespace pride::app
