// The observer that writes a run's lines on a terminal.
// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "pride/error.h"
#include "pride/train/observer.h"

namespace pride::train {
namespace {

constexpr std::chrono::milliseconds kRedraw{200};

constexpr double kLeastSeconds = 0.01, kMostSeconds = 1e6;

}  // namespace

std::optional<std::chrono::milliseconds> progress_interval() {
  const char* text = std::getenv("PRIDE_PROGRESS");
  if (text == nullptr || *text == '\0') return std::chrono::seconds{30};
  if (std::string_view(text) == "none") return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  PRIDE_CHECK(*end == '\0' && seconds >= kLeastSeconds && seconds <= kMostSeconds,
              "PRIDE_PROGRESS = '", text, "': must be none, or seconds from ", kLeastSeconds,
              " to ", kMostSeconds);
  return std::chrono::milliseconds(std::llround(1000 * seconds));
}

std::string clock_text(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::max(seconds, 0.0)));
  std::array<char, 32> text;
  if (s >= 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", s / 60, s % 60);
  }
  return text.data();
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text.data();
}

std::string metric_text(const Facts& metrics) {
  std::string text;
  for (const auto& [key, value] : metrics) {
    std::array<char, 32> number;
    const bool whole = std::holds_alternative<std::int64_t>(value);
    std::snprintf(number.data(), number.size(), whole ? "%.0f" : "%.4f", number_of(metrics, key));
    text += "  " + key + " " + number.data();
  }
  return text;
}

namespace {

class ProgressLine final : public Observer {
 public:
  void on_start(const TrainPlan& plan, const RunStart& start) override {
    plan_ = &plan;
    terminal_ = isatty(STDERR_FILENO) == 1;
    interval_ = progress_interval();
    start_ = last_time_ = Clock::now();
    first_step_ = -1;
    steps_since_ = 0;
    bytes_since_ = 0;
    loss_since_ = 0;
    describe(plan, start);
  }

  void on_step(const WorldStep& step) override {
    if (first_step_ < 0) first_step_ = step.step - 1;
    ++steps_since_;
    loss_since_ += step.mean_loss();
    for (const RankStep& rank : step.ranks) bytes_since_ += rank.bytes_sent;
    const Clock::time_point now = Clock::now();
    if (due(step.step, now)) print(step, now);
    if (step.round && (!step.round->counted || step.round->replayed > 0))
      note(text_of(*step.round));
    if (!step.note.empty()) {
      note(concat(plan_->options.method, ", step ", step.step, ": ", step.note));
    }
  }

  void on_notice(const std::string& text) override { note(text); }

  void on_eval(std::int64_t step, const Facts& metrics, double) override {
    note(concat("evaluation after step ", step, ":", metric_text(metrics)));
  }

 private:
  using Clock = std::chrono::steady_clock;

  static std::string text_of(const RoundReport& r) {
    return concat("round ", r.round, ": ", r.counted ? "counted" : "not counted: " + r.why_not,
                  r.took_parameters ? ", adopted the coordinator's parameters" : "",
                  r.replayed > 0 ? concat(", replayed ", r.replayed, " later rounds") : "");
  }

  void describe(const TrainPlan& plan, const RunStart& start) {
    const DataFacts data = plan.task->data();
    note(concat("data: ", data.source, ", hash ", data.hash));
    note(concat(plan.options.method, ", ", plan.world, " workers (", start.transport, "), ",
                plan.task->model().name, " with ", start.n_parameters, " parameters, ", plan.steps,
                " steps of ", plan.samples_per_step(), " samples, ",
                bytes_text(static_cast<double>(start.cost.bytes())), " per step and worker"));
    for (const SectionReport& s : start.sections) {
      if (start.sections.size() > 1) {
        note(concat(s.method, ": ", s.n_coords, " parameters, ", bytes_text(s.mean_cost.bytes()),
                    " per step and worker"));
      }
    }
    for (const std::string& text : plan.notes) note(text);
    if (plan.options.out.empty()) {
      note("no --out: metrics and model are not saved");
    }
    for (const auto& [route, n] : start.routes) {
      note(concat("route: ", route, ", ", n, n == 1 ? " bucket" : " buckets"));
    }
    if (!start.matrices.empty()) note(start.matrices);
    if (start.step > 0) {
      note(concat("resumed after step ", start.step,
                  start.finished ? ": the run was complete, its results do not change" : ""));
    }
    for (const std::string& text : start.notes) note(text);
    if (start.saved_by > 0 && start.saved_by != plan.world) {
      note(concat("the checkpoint is of ", start.saved_by, " workers: their local state, ",
                  plan.options.resume_local, "; data in the order of ", plan.world,
                  " workers from here on"));
    }
  }

  bool due(std::int64_t step, Clock::time_point now) const {
    if (step == plan_->steps) return true;
    if (terminal_) return now - last_time_ >= kRedraw;
    return step % plan_->options.log_every == 0 || (interval_ && now - last_time_ >= *interval_);
  }

  // Loss and rates are means since the previous line.
  void print(const WorldStep& step, Clock::time_point now) {
    const double window = std::max(std::chrono::duration<double>(now - last_time_).count(), 1e-9);
    const double run = std::chrono::duration<double>(now - start_).count();
    const auto done = static_cast<double>(step.step - first_step_);
    const double left = run / done * static_cast<double>(plan_->steps - step.step);
    const auto steps = static_cast<double>(steps_since_);
    std::fprintf(stderr,
                 "%sstep %lld/%lld  loss %.4f  lr %.2e  %.0f samples/s  %s/s sent  %s left%s",
                 terminal_ ? "\r\033[K" : "", static_cast<long long>(step.step),
                 static_cast<long long>(plan_->steps), loss_since_ / steps, step.lr,
                 steps * static_cast<double>(plan_->samples_per_step()) / window,
                 bytes_text(static_cast<double>(bytes_since_) / window).c_str(),
                 clock_text(left).c_str(), terminal_ ? "" : "\n");
    line_open_ = terminal_;
    last_time_ = now;
    steps_since_ = 0;
    bytes_since_ = 0;
    loss_since_ = 0;
  }

  // Prints a line that stays.
  void note(const std::string& text) {
    std::fprintf(stderr, "%s%s\n", line_open_ ? "\n" : "", text.c_str());
    line_open_ = false;
  }

  const TrainPlan* plan_ = nullptr;
  bool terminal_ = false;
  std::optional<std::chrono::milliseconds> interval_;
  Clock::time_point start_, last_time_;
  std::int64_t first_step_ = -1, steps_since_ = 0;
  std::uint64_t bytes_since_ = 0;  // sent by all ranks
  double loss_since_ = 0;
  bool line_open_ = false;
};

// Lines that are no progress: the run's files, or its coordinator.
class Notices final : public Observer {
 public:
  void on_notice(const std::string& text) override { std::fprintf(stderr, "%s\n", text.c_str()); }
};

}  // namespace

std::shared_ptr<Observer> notices() { return std::make_shared<Notices>(); }

std::shared_ptr<Observer> progress_line() { return std::make_shared<ProgressLine>(); }

}  // namespace pride::train
