// The task cifar10: name what is on a small image.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "data/cifar10.h"
#include "data/find_data.h"
#include "models/vit.h"
#include "pride/error.h"
#include "train/augment.h"
#include "train/hex.h"
#include "train/task.h"

namespace pride::app {
namespace {

constexpr std::size_t kEvalImages = 250;  // per batch

VitSize vit_size(const TrainOptions& o) {
  VitSize size = vit_preset(o.model.empty() ? "vit-small" : o.model, "cifar10");
  PRIDE_CHECK(!o.context, "--context is for lm and fewshot only");
  PRIDE_CHECK(!o.embedding_std, "--embedding-std is for lm and fewshot only");
  size.layers = o.layers.value_or(size.layers);
  size.heads = o.heads.value_or(size.heads);
  size.width = o.width.value_or(size.width);
  size.patch = o.patch.value_or(size.patch);
  size.init_std = o.init_std.value_or(size.init_std);
  return size;
}

class ImageTask final : public Task {
 public:
  ImageTask(const TrainOptions& options, Cifar10 data, std::string source)
      : size_(vit_size(options)),
        model_(options.model.empty() ? "vit-small" : options.model),
        source_(std::move(source)),
        seed_(options.seed),
        data_(std::move(data)),
        labels_(data_.train.labels.begin(), data_.train.labels.end()) {
    make_vit(size_);  // refuses sizes that cannot be
    const std::size_t all = (data_.test.size() + kEvalImages - 1) / kEvalImages;
    const auto wanted = static_cast<std::size_t>(options.eval_batches.value_or(0));
    n_eval_batches_ = wanted == 0 ? all : std::min(all, wanted);
  }

  std::string_view name() const noexcept override { return "cifar10"; }
  std::string_view model_name() const noexcept override { return model_; }
  std::unique_ptr<Model> make_model() const override { return make_vit(size_); }
  std::size_t n_samples() const noexcept override { return data_.train.size(); }
  std::span<const std::uint16_t> labels() const noexcept override { return labels_; }
  std::size_t n_eval_batches() const noexcept override { return n_eval_batches_; }

  nlohmann::ordered_json model_size() const override {
    nlohmann::ordered_json size = {{"layers", size_.layers},
                                   {"heads", size_.heads},
                                   {"width", size_.width},
                                   {"patch", size_.patch}};
    if (size_.init_std != VitSize{}.init_std) size["init_std"] = size_.init_std;
    return size;
  }

  Batch train_batch(std::span<const Draw> draws) const override {
    Batch batch = empty_batch(draws.size());
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
    const std::size_t chosen = std::min(n_eval_batches_ * kEvalImages, data_.test.size());
    const std::size_t begin = index * kEvalImages, end = std::min(begin + kEvalImages, chosen);
    Batch batch = empty_batch(end - begin);
    auto* x = batch.input.data_ptr<float>();
    auto* y = batch.target.data_ptr<std::int64_t>();
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t image = i * data_.test.size() / chosen;
      normalise(data_.test, image, {x, image_floats(data_.test)});
      x += image_floats(data_.test);
      *y++ = data_.test.labels[image];
    }
    return batch;
  }

  nlohmann::ordered_json eval_metrics(const EvalSums& sums) const override {
    const auto count = static_cast<double>(sums.count);
    return {{"loss", sums.loss / count},
            {"accuracy", static_cast<double>(sums.correct) / count},
            {"images", sums.count}};
  }

  nlohmann::ordered_json data_facts() const override {
    return {{"source", source_},
            {"hash", hex16(image_hash(data_.train, data_.test))},
            {"train_images", data_.train.size()},
            {"test_images", data_.test.size()}};
  }

 private:
  Batch empty_batch(std::size_t n) const {
    const auto rows = static_cast<std::int64_t>(n);
    return {at::empty({rows, size_.channels, size_.image, size_.image}, at::kFloat),
            at::empty({rows}, at::kLong)};
  }

  VitSize size_;
  std::string model_, source_;
  std::uint64_t seed_;
  Cifar10 data_;
  std::vector<std::uint16_t> labels_;  // of the training images
  std::size_t n_eval_batches_ = 0;
};

}  // namespace

std::unique_ptr<Task> make_image_task(const TrainOptions& options) {
  const std::filesystem::path folder = find_data(options.data, "cifar10");
  return std::make_unique<ImageTask>(options, load_cifar10(folder), folder.string());
}

}  // namespace pride::app
