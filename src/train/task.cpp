// SPDX-License-Identifier: Apache-2.0
#include "pride/train/task.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <vector>

#include "pride/error.h"

namespace pride::train {
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

std::unique_ptr<BatchQueue> Task::make_queue() const {
  return std::make_unique<DirectQueue>(*this);
}

Facts Task::eval_metrics(const EvalSums& sums) const {
  const auto count = static_cast<double>(sums.count);
  return {{"loss", sums.loss / count},
          {"accuracy", static_cast<double>(sums.correct) / count},
          {"count", sums.count}};
}

// the tasks of pride's own, each in a file of its own
TaskInfo lm_info(), fewshot_info(), cifar10_info(), imagenet_info();

namespace {

std::vector<TaskInfo>& task_rows() {
  static std::vector<TaskInfo> infos = {lm_info(), fewshot_info(), cifar10_info(), imagenet_info()};
  return infos;
}

}  // namespace

const std::vector<TaskInfo>& tasks() { return task_rows(); }

void register_task(TaskInfo info) {
  PRIDE_CHECK(std::ranges::count(task_rows(), info.name, &TaskInfo::name) == 0, "task ", info.name,
              " is registered already");
  task_rows().push_back(std::move(info));
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  return task_info(options.task).make(options);
}

const TaskInfo& task_info(const std::string& name) {
  std::string names;
  for (const TaskInfo& info : task_rows()) {
    if (info.name == name) return info;
    names += (names.empty() ? "" : ", ") + info.name;
  }
  throw InvalidArgument(concat("--task ", name, ": must be one of ", names));
}

}  // namespace pride::train
