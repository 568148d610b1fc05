// SPDX-License-Identifier: Apache-2.0
#include "train/task.h"

#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "pride/error.h"

namespace pride::app {
namespace {

// Makes a batch when it is taken: for tasks whose batches cost next to nothing.
class DirectQueue final : public BatchQueue {
 public:
  explicit DirectQueue(const Task& task) : task_(task) {}

  std::size_t depth() const noexcept override { return 1; }
  void ask_train(std::span<const Draw> draws) override {
    asked_.emplace_back([this, own = std::vector<Draw>(draws.begin(), draws.end())] {
      return task_.train_batch(own);
    });
  }
  void ask_eval(std::size_t index) override {
    asked_.emplace_back([this, index] { return task_.eval_batch(index); });
  }
  Batch take() override {
    PRIDE_CHECK(!asked_.empty(), "batches: none was asked for");
    const auto make = std::move(asked_.front());
    asked_.pop_front();
    return make();
  }

 private:
  const Task& task_;
  std::deque<std::function<Batch()>> asked_;
};

}  // namespace

nlohmann::ordered_json Task::model_config() const { return nullptr; }

std::unique_ptr<BatchQueue> Task::make_queue() const {
  return std::make_unique<DirectQueue>(*this);
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  if (options.task == "lm") return make_text_task(options);
  if (options.task == "fewshot") return make_choice_task(options);
  return options.task == "imagenet" ? make_folder_task(options) : make_image_task(options);
}

}  // namespace pride::app
