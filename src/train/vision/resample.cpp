// SPDX-License-Identifier: Apache-2.0
#include "train/vision/resample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pride/error.h"

namespace pride::train {
namespace {

// 8 bits of a pixel, 22 of a weight, and one to spare: a sum of weights 1 stays below 2^31
constexpr int kBits = 22;

// One output coordinate: weights of the inputs from `first` on.
struct Taps {
  int first = 0, count = 0;
  std::size_t weights = 0;  // where they begin
};

struct Filter {
  std::vector<Taps> taps;
  std::vector<std::int32_t> weights;
};

// Of outputs [begin, begin + count) where `in` inputs become `out` outputs.
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

// One row of pixels, to as many as the filter has outputs.
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
