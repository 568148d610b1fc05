// The task imagenet: name what is on the images of a folder, which are decoded ahead of the step.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

#include "data/find_data.h"
#include "models/vit.h"
#include "pride/error.h"
#include "pride/random_bits.h"
#include "train/hex.h"
#include "train/streams.h"
#include "train/task.h"
#include "vision/image_folder.h"
#include "vision/prefetcher.h"
#include "vision/view.h"

namespace pride::app {
namespace {

constexpr std::size_t kEvalImages = 250;  // per batch
constexpr std::int64_t kImageSize = 224;
constexpr int kLoaderThreads = 2;
constexpr std::size_t kDepth = 3;  // the batch that is waited for, and two behind it

VitSize vit_size(const TrainOptions& o, std::size_t classes) {
  VitSize size = vit_preset(o.model.empty() ? "vit-s16" : o.model, "imagenet");
  PRIDE_CHECK(!o.context, "--context is for lm and fewshot only");
  PRIDE_CHECK(!o.embedding_std, "--embedding-std is for lm and fewshot only");
  size.layers = o.layers.value_or(size.layers);
  size.heads = o.heads.value_or(size.heads);
  size.width = o.width.value_or(size.width);
  size.patch = o.patch.value_or(size.patch);
  size.init_std = o.init_std.value_or(size.init_std);
  size.image = o.image_size.value_or(kImageSize);
  size.classes = static_cast<std::int64_t>(classes);
  return size;
}

class FolderTask final : public Task {
 public:
  FolderTask(const TrainOptions& options, const std::filesystem::path& folder)
      : images_(scan_images(folder)),
        size_(vit_size(options, images_.classes.size())),
        model_(options.model.empty() ? "vit-s16" : options.model),
        source_(folder.string()),
        seed_(options.seed),
        threads_(options.loader_threads.value_or(kLoaderThreads)) {
    make_vit(size_);  // refuses sizes that cannot be
    const std::size_t all = (images_.val.size() + kEvalImages - 1) / kEvalImages;
    const auto wanted = static_cast<std::size_t>(options.eval_batches.value_or(0));
    n_eval_batches_ = wanted == 0 ? all : std::min(all, wanted);
  }

  std::string_view name() const noexcept override { return "imagenet"; }
  std::string_view model_name() const noexcept override { return model_; }
  std::unique_ptr<Model> make_model() const override { return make_vit(size_); }
  std::size_t n_samples() const noexcept override { return images_.train.size(); }
  std::span<const std::uint16_t> labels() const noexcept override { return images_.train.labels; }
  std::size_t n_eval_batches() const noexcept override { return n_eval_batches_; }

  nlohmann::ordered_json model_size() const override {
    nlohmann::ordered_json size = {{"layers", size_.layers}, {"heads", size_.heads},
                                   {"width", size_.width},   {"patch", size_.patch},
                                   {"image", size_.image},   {"classes", size_.classes}};
    if (size_.init_std != VitSize{}.init_std) size["init_std"] = size_.init_std;
    return size;
  }
  nlohmann::ordered_json model_config() const override;

  Batch train_batch(std::span<const Draw> draws) const override;
  Batch eval_batch(std::size_t index) const override;
  std::unique_ptr<BatchQueue> make_queue() const override;

  nlohmann::ordered_json eval_metrics(const EvalSums& sums) const override {
    const auto count = static_cast<double>(sums.count);
    return {{"loss", sums.loss / count},
            {"accuracy", static_cast<double>(sums.correct) / count},
            {"images", sums.count}};
  }

  nlohmann::ordered_json data_facts() const override {
    return {{"source", source_},
            {"hash", hex16(images_.hash)},
            {"classes", images_.classes.size()},
            {"train_images", images_.train.size()},
            {"test_images", images_.val.size()},
            {"other_files", images_.n_others}};
  }

  // The batch that make(row, floats) fills, begun by `prefetcher`.
  template <typename Make>
  Batch begin(Prefetcher& prefetcher, std::size_t rows, Make make) const {
    const auto n = static_cast<std::int64_t>(rows);
    Batch batch{at::empty({n, size_.channels, size_.image, size_.image}, at::kFloat),
                at::empty({n}, at::kLong)};
    const std::size_t floats = view_floats(side());
    // the pointer is valid while a copy of the batch is
    prefetcher.begin(
        rows, [batch, floats, make = std::move(make), out = batch.input.template data_ptr<float>()](
                  std::size_t row) { make(row, std::span(out + row * floats, floats)); });
    return batch;
  }

  Batch begin_train(Prefetcher& prefetcher, std::span<const Draw> draws) const {
    Batch batch =
        begin(prefetcher, draws.size(),
              [this, own = std::vector<Draw>(draws.begin(), draws.end())](std::size_t row,
                                                                          std::span<float> out) {
                const Draw& draw = own[row];
                const RgbImage image = read_jpeg(images_.train.file(draw.sample));
                train_view(image, side(), {seed_, streams::kCrop, draw.sample, draw.epoch}, out);
              });
    auto* y = batch.target.data_ptr<std::int64_t>();
    for (const Draw& draw : draws) *y++ = images_.train.labels[draw.sample];
    return batch;
  }

  Batch begin_eval(Prefetcher& prefetcher, std::size_t index) const {
    const std::size_t chosen = std::min(n_eval_batches_ * kEvalImages, images_.val.size());
    const std::size_t first = index * kEvalImages, end = std::min(first + kEvalImages, chosen);
    const auto image_of = [this, first, chosen](std::size_t row) {
      return (first + row) * images_.val.size() / chosen;
    };
    Batch batch =
        begin(prefetcher, end - first, [this, image_of](std::size_t row, std::span<float> out) {
          eval_view(read_jpeg(images_.val.file(image_of(row))), side(), out);
        });
    auto* y = batch.target.data_ptr<std::int64_t>();
    for (std::size_t row = 0; row < end - first; ++row) *y++ = images_.val.labels[image_of(row)];
    return batch;
  }

 private:
  int side() const noexcept { return static_cast<int>(size_.image); }

  ImageFolder images_;
  VitSize size_;
  std::string model_, source_;
  std::uint64_t seed_;
  int threads_;
  std::size_t n_eval_batches_ = 0;
};

class FolderQueue final : public BatchQueue {
 public:
  FolderQueue(const FolderTask& task, int threads) : task_(task), prefetcher_(threads) {}

  std::size_t depth() const noexcept override { return kDepth; }
  void ask_train(std::span<const Draw> draws) override {
    batches_.push_back(task_.begin_train(prefetcher_, draws));
  }
  void ask_eval(std::size_t index) override {
    batches_.push_back(task_.begin_eval(prefetcher_, index));
  }
  Batch take() override {
    PRIDE_CHECK(!batches_.empty(), "batches: none was asked for");
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    prefetcher_.wait();
    return batch;
  }

 private:
  const FolderTask& task_;
  std::deque<Batch> batches_;
  Prefetcher prefetcher_;  // last: its threads end before the batches that they fill
};

Batch FolderTask::train_batch(std::span<const Draw> draws) const {
  FolderQueue queue(*this, 0);
  queue.ask_train(draws);
  return queue.take();
}

Batch FolderTask::eval_batch(std::size_t index) const {
  FolderQueue queue(*this, 0);
  queue.ask_eval(index);
  return queue.take();
}

std::unique_ptr<BatchQueue> FolderTask::make_queue() const {
  return std::make_unique<FolderQueue>(*this, threads_);
}

// In the words of timm, whose models have the same parameters.
nlohmann::ordered_json FolderTask::model_config() const {
  return {{"architecture", model_ == "vit-b16" ? "vit_base_patch16_224" : "vit_small_patch16_224"},
          {"num_classes", size_.classes},
          {"num_features", size_.width},
          {"global_pool", "token"},
          {"model_args",
           {{"img_size", size_.image},
            {"patch_size", size_.patch},
            {"embed_dim", size_.width},
            {"depth", size_.layers},
            {"num_heads", size_.heads}}},
          {"pretrained_cfg",
           {{"input_size", {size_.channels, size_.image, size_.image}},
            {"interpolation", "bilinear"},
            {"crop_pct", 224.0 / 256},
            {"mean", {0.485, 0.456, 0.406}},
            {"std", {0.229, 0.224, 0.225}}}},
          {"label_names", images_.classes}};
}

}  // namespace

std::unique_ptr<Task> make_folder_task(const TrainOptions& options) {
  return std::make_unique<FolderTask>(options, find_data(options.data, "imagenet"));
}

}  // namespace pride::app
