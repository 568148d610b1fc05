// SPDX-License-Identifier: Apache-2.0
#include "train/vision/view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "pride/error.h"

namespace pride::train {
namespace {

constexpr double kLeastArea = 0.08;
constexpr double kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;
constexpr int kTries = 10;

constexpr std::array<double, 3> kMean = {0.485, 0.456, 0.406};
constexpr std::array<double, 3> kDeviation = {0.229, 0.224, 0.225};

// Uniform in [low, high).
double uniform(PhiloxStream& bits, double low, double high) {
  return low + (high - low) * static_cast<double>(bits.next_u64() >> 11) * 0x1p-53;
}

// Rounds as Python does: halves to the even neighbour.
int rounded(double value) { return static_cast<int>(std::nearbyint(value)); }

Box centred(int width, int height, int part_width, int part_height) {
  return {(width - part_width) / 2, (height - part_height) / 2, part_width, part_height};
}

void write_view(const RgbImage& image, const Resize& how, bool flip, std::span<float> out) {
  const auto size = static_cast<std::size_t>(how.window.width);
  PRIDE_CHECK(out.size() == 3 * size * size, "a view of ", size, " pixels: room for ", out.size(),
              " floats");
  std::vector<std::uint8_t> bytes(out.size());
  resample(image, how, bytes);
  static const ByteValues values = normalised_bytes(kMean, kDeviation);
  float* value = out.data();
  for (std::size_t c = 0; c < 3; ++c) {
    const std::array<float, 256>& table = values[c];
    for (std::size_t y = 0; y < size; ++y) {
      const std::uint8_t* row = bytes.data() + 3 * y * size + c;
      for (std::size_t x = 0; x < size; ++x) {
        *value++ = table[row[3 * (flip ? size - 1 - x : x)]];
      }
    }
  }
}

}  // namespace

ByteValues normalised_bytes(const std::array<double, 3>& mean,
                            const std::array<double, 3>& deviation) {
  ByteValues values{};
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t p = 0; p < 256; ++p) {
      const double value = (static_cast<double>(p) / 255 - mean[c]) / deviation[c];
      values[c][p] = static_cast<float>(value);
    }
  }
  return values;
}

Box random_crop(int width, int height, PhiloxStream& bits) {
  const double area = static_cast<double>(width) * height;
  for (int i = 0; i < kTries; ++i) {
    const double part = area * uniform(bits, kLeastArea, 1);
    const double ratio = std::exp(uniform(bits, std::log(kLeastRatio), std::log(kMostRatio)));
    const int w = rounded(std::sqrt(part * ratio)), h = rounded(std::sqrt(part / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto top = bits.next_below(static_cast<std::uint32_t>(height - h + 1));
    const auto left = bits.next_below(static_cast<std::uint32_t>(width - w + 1));
    return {static_cast<int>(left), static_cast<int>(top), w, h};
  }
  // an image of 1 x 1000 pixels has parts of 1 x 1 at least
  const double ratio = static_cast<double>(width) / height;
  if (ratio < kLeastRatio) {
    return centred(width, height, width, std::min(height, rounded(width / kLeastRatio)));
  }
  if (ratio > kMostRatio) {
    return centred(width, height, std::min(width, rounded(height * kMostRatio)), height);
  }
  return {0, 0, width, height};
}

Resize centre_crop(int width, int height, int size) {
  const int side = rounded(size * 256.0 / 224);
  const int shorter = std::min(width, height), longer = std::max(width, height);
  const auto other = static_cast<int>(std::int64_t{side} * longer / shorter);
  Resize how{.from = {0, 0, width, height}};
  how.width = width <= height ? side : other;
  how.height = width <= height ? other : side;
  how.window = {rounded((how.width - size) / 2.0), rounded((how.height - size) / 2.0), size, size};
  return how;
}

void train_view(const RgbImage& image, int size, PhiloxStream bits, std::span<float> out) {
  Resize how{.width = size, .height = size, .window = {0, 0, size, size}};
  how.from = random_crop(image.width, image.height, bits);
  write_view(image, how, bits.next_below(2) == 1, out);
}

void eval_view(const RgbImage& image, int size, std::span<float> out) {
  write_view(image, centre_crop(image.width, image.height, size), false, out);
}

namespace {

// 8 bits of a pixel, 22 of a weight, and one to spare: a sum of weights 1 stays below 2^31
constexpr int kBits = 22;

// One output coordinate: weights of the inputs from `first` on.
struct Taps {
  int first = 0, count = 0;
  std::size_t weights = 0;  // index of the first weight
};

struct Filter {
  std::vector<Taps> taps;
  std::vector<std::int32_t> weights;
};

// The filter of outputs [begin, begin + count) of a resize from `in` to `out`.
Filter make_filter(int in, int out, int begin, int count) {
  Filter filter;
  const double scale = static_cast<double>(in) / out;
  const double widened = std::max(scale, 1.0);
  std::vector<double> shares;
  for (int i = begin; i < begin + count; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - widened + 0.5));
    const int last = std::min(in, static_cast<int>(centre + widened + 0.5));
    shares.clear();
    double sum = 0;
    for (int x = first; x < last; ++x) {
      shares.push_back(std::max(0.0, 1 - std::abs((x + 0.5 - centre) / widened)));
      sum += shares.back();
    }
    filter.taps.push_back({first, last - first, filter.weights.size()});
    for (const double share : shares) {
      filter.weights.push_back(static_cast<std::int32_t>(0.5 + share / sum * (1 << kBits)));
    }
  }
  return filter;
}

constexpr std::int32_t kHalf = 1 << (kBits - 1);

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::min(sum >> kBits, 255));
}

// Resizes one row of pixels to the filter's outputs.
void along_row(const Filter& filter, const std::uint8_t* in, std::uint8_t* out) {
  for (const Taps& taps : filter.taps) {
    const std::int32_t* weight = filter.weights.data() + taps.weights;
    const std::uint8_t* pixel = in + std::ptrdiff_t{3} * taps.first;
    std::int32_t r = kHalf, g = kHalf, b = kHalf;
    for (int k = 0; k < taps.count; ++k, pixel += 3) {
      r += pixel[0] * weight[k];
      g += pixel[1] * weight[k];
      b += pixel[2] * weight[k];
    }
    *out++ = to_byte(r);
    *out++ = to_byte(g);
    *out++ = to_byte(b);
  }
}

// One output row of `n` bytes, from the input rows of its taps.
void along_columns(const std::int32_t* weight, int count, const std::uint8_t* in, std::size_t n,
                   std::int32_t* sums, std::uint8_t* out) {
  std::fill_n(sums, n, kHalf);
  for (int k = 0; k < count; ++k, in += n) {
    const std::int32_t w = weight[k];
    for (std::size_t i = 0; i < n; ++i) sums[i] += in[i] * w;
  }
  for (std::size_t i = 0; i < n; ++i) out[i] = to_byte(sums[i]);
}

void check(const RgbImage& image, const Resize& how, std::size_t out_size) {
  const auto inside = [](const Box& box, int width, int height) {
    return box.left >= 0 && box.top >= 0 && box.width >= 1 && box.height >= 1 &&
           box.width <= width - box.left && box.height <= height - box.top;
  };
  PRIDE_CHECK(
      inside(how.from, image.width, image.height) && inside(how.window, how.width, how.height),
      "resample: a box outside of an image of ", image.width, " x ", image.height, ", or of ",
      how.width, " x ", how.height);
  PRIDE_CHECK(out_size == std::size_t{3} * static_cast<std::size_t>(how.window.width) *
                              static_cast<std::size_t>(how.window.height),
              "resample: room for ", out_size, " bytes");
}

}  // namespace

void resample(const RgbImage& image, const Resize& how, std::span<std::uint8_t> out) {
  check(image, how, out.size());
  const Box& from = how.from;
  const Filter columns = make_filter(from.width, how.width, how.window.left, how.window.width);
  const Filter rows = make_filter(from.height, how.height, how.window.top, how.window.height);
  // only the rows that some output needs; both ends of the taps rise from row to row
  const int first = rows.taps.front().first;
  const int last = rows.taps.back().first + rows.taps.back().count;
  const std::size_t n = static_cast<std::size_t>(how.window.width) * 3;
  std::vector<std::uint8_t> narrow(static_cast<std::size_t>(last - first) * n);
  for (int y = first; y < last; ++y) {
    const std::ptrdiff_t at = std::ptrdiff_t{from.top + y} * image.width + from.left;
    along_row(columns, image.pixels.data() + 3 * at,
              narrow.data() + static_cast<std::size_t>(y - first) * n);
  }
  std::vector<std::int32_t> sums(n);
  std::uint8_t* row = out.data();
  for (const Taps& taps : rows.taps) {
    along_columns(rows.weights.data() + taps.weights, taps.count,
                  narrow.data() + static_cast<std::size_t>(taps.first - first) * n, n, sums.data(),
                  row);
    row += n;
  }
}

}  // namespace pride::train
