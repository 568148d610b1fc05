// The task cifar10: classify small images; and the common part of image tasks.
// SPDX-License-Identifier: Apache-2.0
#include "train/images.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <cstring>

#include "pride/random_bits.h"
#include "program/files.h"
#include "program/hex.h"
#include "train/data/find_data.h"
#include "train/gamma.h"
#include "train/streams.h"
#include "train/vision/view.h"

namespace pride::train {
namespace {

constexpr std::int64_t kSide = 32, kChannels = 3, kClasses = 10;

constexpr int kPadding = 4;
constexpr std::array<double, 3> kMean = {0.4914, 0.4822, 0.4465};
constexpr std::array<double, 3> kDeviation = {0.2470, 0.2435, 0.2616};

struct Crop {
  int down = 0, right = 0;  // offset of the source from the output, in pixels
  bool flip = false;
};

void write_image(const ImageSet& set, std::size_t index, const Crop& crop, float* out) {
  static const ByteValues all_values = normalised_bytes(kMean, kDeviation);
  const int height = set.height, width = set.width;
  const std::uint8_t* plane = set.pixels.data() + index * image_floats(set);
  for (std::size_t c = 0; c < 3; ++c, plane += height * width) {
    const std::array<float, 256>& values = all_values[c];
    for (int row = 0; row < height; ++row) {
      for (int column = 0; column < width; ++column) {
        const int y = row + crop.down;
        const int x = (crop.flip ? width - 1 - column : column) + crop.right;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        *out++ = values[inside ? plane[y * width + x] : 0];
      }
    }
  }
}

// Channel-wise (pixel / 255 - mean) / deviation.
void normalise(const ImageSet& set, std::size_t index, std::span<float> out) {
  write_image(set, index, {}, out.data());
}

// 64-bit digest of pixels and labels.
std::uint64_t image_hash(const ImageSet& train, const ImageSet& test) {
  std::uint64_t hash = 0;
  for (const auto* bytes : {&train.pixels, &train.labels, &test.pixels, &test.labels}) {
    std::size_t i = 0;
    for (; i + 8 <= bytes->size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes->data() + i, sizeof word);
      hash = mix64(hash, word);
    }
    for (; i < bytes->size(); ++i) hash = mix64(hash, (*bytes)[i]);
    hash = mix64(hash, bytes->size());
  }
  return hash;
}

class ImageTask final : public Task {
 public:
  ImageTask(const TrainOptions& options, Cifar10 data, std::string source)
      : model_(model_maker(options,
                           {.kind = ModelInput::Kind::kImages,
                            .classes = kClasses,
                            .image_size = kSide,
                            .channels = kChannels},
                           "vit-small")),
        source_(std::move(source)),
        seed_(options.seed),
        data_(std::move(data)),
        labels_(data_.train.labels.begin(), data_.train.labels.end()),
        eval_(data_.test.size(), options) {}

  std::string name() const override { return "cifar10"; }
  const ModelMaker& model() const override { return model_; }
  std::size_t n_samples() const override { return data_.train.size(); }
  std::span<const std::uint16_t> labels() const override { return labels_; }
  std::size_t n_eval_batches() const override { return eval_.n_batches(); }
  Facts eval_metrics(const EvalSums& sums) const override { return image_metrics(sums); }

  Batch train_batch(std::span<const Draw> draws) const override {
    Batch batch = empty_images(draws.size(), kChannels, kSide);
    auto* x = batch.input.data_ptr<float>();
    auto* y = batch.target.data_ptr<std::int64_t>();
    for (const Draw& draw : draws) {
      augment(data_.train, draw, seed_, {x, image_floats(data_.train)});
      x += image_floats(data_.train);
      *y++ = data_.train.labels[draw.sample];
    }
    return batch;
  }

  Batch eval_batch(std::size_t index) const override {
    const std::size_t rows = eval_.rows(index);
    Batch batch = empty_images(rows, kChannels, kSide);
    auto* x = batch.input.data_ptr<float>();
    auto* y = batch.target.data_ptr<std::int64_t>();
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t image = eval_.image(index, row);
      normalise(data_.test, image, {x, image_floats(data_.test)});
      x += image_floats(data_.test);
      *y++ = data_.test.labels[image];
    }
    return batch;
  }

  DataFacts data() const override {
    return {source_,
            hex16(image_hash(data_.train, data_.test)),
            {{"train_images", static_cast<std::int64_t>(data_.train.size())},
             {"test_images", static_cast<std::int64_t>(data_.test.size())}}};
  }

 private:
  ModelMaker model_;
  std::string source_;
  std::uint64_t seed_;
  Cifar10 data_;
  std::vector<std::uint16_t> labels_;  // of the training images
  EvalImages eval_;
};

}  // namespace

std::size_t image_floats(const ImageSet& set) {
  return static_cast<std::size_t>(set.channels) * static_cast<std::size_t>(set.height) *
         static_cast<std::size_t>(set.width);
}

void augment(const ImageSet& set, const Draw& draw, std::uint64_t seed, std::span<float> out) {
  PhiloxStream bits(seed, streams::kAugment, draw.sample, draw.epoch);
  Crop crop;
  crop.down = static_cast<int>(bits.next_below(2 * kPadding + 1)) - kPadding;
  crop.right = static_cast<int>(bits.next_below(2 * kPadding + 1)) - kPadding;
  crop.flip = bits.next_below(2) == 1;
  write_image(set, draw.sample, crop, out.data());
}

void mix_up(double alpha, PhiloxStream bits, Batch& batch) {
  const double a = log_gamma_variate(alpha, bits), b = log_gamma_variate(alpha, bits);
  batch.share = 1 / (1 + std::exp(b - a));
  batch.other = batch.target.flip({0});
  batch.input = batch.input * batch.share + batch.input.flip({0}) * (1 - batch.share);
}

Batch empty_images(std::size_t n, std::int64_t channels, std::int64_t side) {
  const auto rows = static_cast<std::int64_t>(n);
  return {at::empty({rows, channels, side, side}, at::kFloat), at::empty({rows}, at::kLong)};
}

TaskInfo cifar10_info() {
  const auto make = [](const TrainOptions& o) {
    const std::filesystem::path folder =
        find_data(o.data, "cifar10", "the official binary files; scripts/get_data.sh fetches them");
    return std::make_unique<ImageTask>(o, load_cifar10(folder), folder.string());
  };
  return {.name = "cifar10",
          .about = "images of 32 x 32 pixels in 10 classes",
          .data = "the folder with data_batch_1.bin[.gz] ...; default: $PRIDE_DATA",
          .default_batch = 32,
          .flags = {"patch", "label-smoothing", "mixup"},
          .make = make};
}

}  // namespace pride::train
