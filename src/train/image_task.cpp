// The task cifar10: name what is on a small image.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "train/data/cifar10.h"
#include "train/files.h"
#include "train/hex.h"
#include "train/images.h"

namespace pride::train {
namespace {

constexpr std::int64_t kSide = 32, kChannels = 3, kClasses = 10;

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
