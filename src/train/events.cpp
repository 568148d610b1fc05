// The event file of a run, for TensorBoard.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <optional>

#include "pride/error.h"
#include "pride/train/observer.h"
#include "train/io/tensorboard.h"

namespace pride::train {
namespace {

EventFile open_events(const TrainOptions& o, std::int64_t step) {
  if (o.resume.empty() && o.overwrite) {
    for (const std::filesystem::path& file : event_files_in(o.tensorboard))
      std::filesystem::remove(file);
  }
  return EventFile(o.tensorboard, step);
}

class Events final : public Observer {
 public:
  void on_start(const TrainPlan& plan, const RunStart& start) override {
    PRIDE_CHECK(!plan.options.tensorboard.empty(),
                "tensorboard_events: options.tensorboard names no folder");
    file_.emplace(open_events(plan.options, start.step));
  }

  void on_step(const WorldStep& step) override {
    const StageTimes seconds = step.max_seconds();
    Scalars scalars = {{"train/loss", step.mean_loss()},
                       {"train/lr", step.lr},
                       {"bytes/sent", static_cast<double>(step.max_bytes_sent())},
                       {"bytes/received", static_cast<double>(step.max_bytes_received())},
                       {"ms/data", seconds.data * 1e3},
                       {"ms/backward", seconds.backward * 1e3},
                       {"ms/encode", seconds.encode * 1e3},
                       {"ms/exchange", seconds.exchange * 1e3},
                       {"ms/apply", seconds.apply * 1e3}};
    if (step.grad_norm) scalars.emplace_back("train/grad_norm", *step.grad_norm);
    file_->write(step.step, scalars);
  }

  void on_eval(std::int64_t step, const Facts& metrics, double) override {
    Scalars scalars;
    for (const auto& fact : metrics) {
      if (fact.second.index() <= 1) {  // a number
        scalars.emplace_back("eval/" + fact.first, number_of(metrics, fact.first));
      }
    }
    file_->write(step, scalars);
  }

 private:
  std::optional<EventFile> file_;
};

}  // namespace

std::shared_ptr<Observer> tensorboard_events() { return std::make_shared<Events>(); }

}  // namespace pride::train
