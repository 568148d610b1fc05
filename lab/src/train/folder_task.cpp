// The task imagenet: classify the images of a folder, decoded ahead of the step.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <deque>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "program/hex.h"
#include "train/images.h"
#include "train/streams.h"
#include "train/vision/image_folder.h"
#include "train/vision/prefetcher.h"
#include "train/vision/view.h"

namespace pride::train {
namespace {

constexpr std::int64_t kCropSide = 224, kRgb = 3;
constexpr int kLoaderThreads = 2;
constexpr std::size_t kDepth = 3;  // the next batch, and two after it

class FolderTask final : public Task {
 public:
  FolderTask(const TrainOptions& options, const std::filesystem::path& folder)
      : images_(scan_images(folder)),
        side_(options.image_size.value_or(kCropSide)),
        model_(model_maker(options,
                           {.kind = ModelInput::Kind::kImages,
                            .classes = static_cast<std::int64_t>(images_.classes.size()),
                            .image_size = side_,
                            .channels = kRgb,
                            .labels = images_.classes},
                           "vit-s16")),
        source_(folder.string()),
        seed_(options.seed),
        threads_(options.loader_threads.value_or(kLoaderThreads)),
        eval_(images_.val.size(), options) {}

  std::string name() const override { return "imagenet"; }
  const ModelMaker& model() const override { return model_; }
  std::size_t n_samples() const override { return images_.train.size(); }
  std::span<const std::uint16_t> labels() const override { return images_.train.labels; }
  std::size_t n_eval_batches() const override { return eval_.n_batches(); }
  Facts eval_metrics(const EvalSums& sums) const override { return image_metrics(sums); }

  Batch train_batch(std::span<const Draw> draws) const override;
  Batch eval_batch(std::size_t index) const override;
  std::unique_ptr<BatchQueue> make_queue() const override;

  DataFacts data() const override {
    const auto n = [](std::size_t size) { return static_cast<std::int64_t>(size); };
    return {source_,
            hex16(images_.hash),
            {{"classes", n(images_.classes.size())},
             {"train_images", n(images_.train.size())},
             {"test_images", n(images_.val.size())},
             {"other_files", n(images_.n_others)}}};
  }

  // A batch whose rows `prefetcher` fills in the background, by make(row, floats).
  template <typename Make>
  Batch begin(Prefetcher& prefetcher, std::size_t rows, Make make) const {
    Batch batch = empty_images(rows, kRgb, side_);
    const std::size_t floats = view_floats(side());
    // the pointer is valid as long as a copy of the batch exists
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
    const std::size_t rows = eval_.rows(index);
    Batch batch = begin(prefetcher, rows, [this, index](std::size_t row, std::span<float> out) {
      eval_view(read_jpeg(images_.val.file(eval_.image(index, row))), side(), out);
    });
    auto* y = batch.target.data_ptr<std::int64_t>();
    for (std::size_t row = 0; row < rows; ++row) {
      *y++ = images_.val.labels[eval_.image(index, row)];
    }
    return batch;
  }

 private:
  int side() const noexcept { return static_cast<int>(side_); }

  ImageFolder images_;
  std::int64_t side_;  // of the views, in pixels
  ModelMaker model_;
  std::string source_;
  std::uint64_t seed_;
  int threads_;
  EvalImages eval_;
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
    PRIDE_CHECK(!batches_.empty(), "batches: none was requested");
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    prefetcher_.wait();
    return batch;
  }

 private:
  const FolderTask& task_;
  std::deque<Batch> batches_;
  Prefetcher prefetcher_;  // last: destroyed before the batches that its threads fill
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

}  // namespace

TaskInfo imagenet_info() {
  const auto make = [](const TrainOptions& o) {
    return std::make_unique<FolderTask>(o, find_image_folder(o.data));
  };
  return {.name = "imagenet",
          .about = "a folder of JPEG images for each class",
          .data = "the folder with train/CLASS/*.jpg and val/CLASS/*.jpg; default: $PRIDE_DATA",
          .default_batch = 32,
          .flags = {"patch", "label-smoothing", "mixup", "image-size", "loader-threads"},
          .make = make};
}

}  // namespace pride::train
