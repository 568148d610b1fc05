// SPDX-License-Identifier: Apache-2.0
#include "experiments/runner.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "pride/error.h"
#include "program/clock.h"
#include "program/files.h"
#include "train/progress.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

using State = Entry::State;

constexpr std::chrono::milliseconds kSignalPoll{50};
constexpr const char* kFailure = "failed.json";

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// The rate of runs for which [tune] found none.
constexpr double kUnknownRate = std::numeric_limits<double>::quiet_NaN();

RunData failure(const Run& run, const std::string& why) {
  return {.folder = run.folder.string(), .error = why};
}

void set(Entry& entry, RunData result) {
  entry.state = result.ok() ? State::kDone : State::kFailed;
  entry.result = std::move(result);
}

// The last progress line of the run's log: "step 120/400  loss 2.3026 ...".
std::string last_progress(const fs::path& folder) {
  std::ifstream log(folder / "log");
  std::string last = "begins";
  for (std::string line; std::getline(log, line);) {
    if (line.starts_with("step ")) last = line;
  }
  return last;
}

bool is_missing(const Entry& entry) { return entry.state == State::kMissing; }
bool any_missing(const Choice& choice) {
  return std::ranges::any_of(choice.runs, [](const Entry* entry) { return is_missing(*entry); });
}

class Runner {
 public:
  Runner(const ExperimentPlan& plan, const RunnerOptions& options, bool (*stop_asked)() noexcept)
      : plan_(plan),
        options_(options),
        stop_asked_(stop_asked),
        interval_(options.quiet ? std::nullopt : train::progress_interval()) {
    if (plan.experiment.tune) {
      for (const Cell& cell : plan.cells) {
        runs.choices.push_back({.cell = &cell, .points = combinations(cell.tune)});
      }
    }
    while (add_tuning_runs()) {
    }
    add_final_runs();
  }

  void make_all() {
    began_ = std::chrono::steady_clock::now();
    write();
    for (const Entry& entry : runs.entries) {
      if (entry.run.refused.empty() || options_.quiet) continue;
      std::cerr << "refused: " << name_of(entry.run) << ": " << entry.run.refused << std::endl;
    }
    bool all = make_missing();
    while (all && add_tuning_runs()) all = make_missing();
    if (all && !runs.choices.empty()) {
      add_final_runs();
      all = make_missing();
    }
    for (Choice& choice : runs.choices) choose(choice);
    runs.complete = all;
    write();
  }

  Runs runs;

 private:
  // Adds the next tuning runs; false if there are none now.
  bool add_tuning_runs() {
    bool any = false;
    for (Choice& choice : runs.choices) {
      for (const std::size_t point : next_points(choice)) {
        choice.tried.push_back(point);
        choice.runs.push_back(&add(plan_.tuning_run(*choice.cell, choice.points[point])));
        any = true;
      }
    }
    return any;
  }

  // All points at once; for a climb one point, after the earlier ones are done.
  std::vector<std::size_t> next_points(const Choice& choice) const {
    std::vector<std::size_t> points;
    if (plan_.experiment.tune->climb) {
      if (any_missing(choice)) return {};
      const auto next = next_point(choice.cell->tune, trials_of(choice));
      if (next) points.push_back(*next);
    } else if (choice.tried.empty()) {
      points.resize(choice.points.size());
      std::iota(points.begin(), points.end(), std::size_t{0});
    }
    return points;
  }

  // Adds the runs that need no more tuning, seed by seed, so that the runs before an interruption
  // can be compared.
  void add_final_runs() {
    for (Choice& choice : runs.choices) choose(choice);
    std::size_t most_seeds = 0;
    for (const Cell& cell : plan_.cells) most_seeds = std::max(most_seeds, cell.seeds.size());
    for (std::size_t k = 0; k < most_seeds; ++k) {
      for (std::size_t c = 0; c < plan_.cells.size(); ++c) {
        const Cell& cell = plan_.cells[c];
        const Choice* choice = runs.choices.empty() ? nullptr : &runs.choices[c];
        if (k >= cell.seeds.size() || (choice != nullptr && !choice->complete)) continue;
        const Point chosen = choice != nullptr ? choice->chosen : Point();
        Entry& entry = add(plan_.final_run(cell, chosen, cell.seeds[k]));
        if (choice == nullptr || !chosen.empty() || !is_missing(entry)) continue;
        if (has_rate(choice->points.front())) entry.run.rate = kUnknownRate;
        set(entry,
            failure(entry.run, concat("not run: no point of [tune.grid] gave a result; the last: ",
                                      choice->runs.back()->result.error)));
      }
    }
  }

  Entry& add(Run run) {
    const auto found = by_id_.find(run.id);
    if (found != by_id_.end()) return *found->second;
    Entry& entry = runs.entries.emplace_back(Entry{.run = std::move(run)});
    by_id_[entry.run.id] = &entry;
    look_for_earlier(entry);
    return entry;
  }

  void look_for_earlier(Entry& entry) const {
    const Run& run = entry.run;
    if (!run.refused.empty()) return set(entry, failure(run, run.refused));
    std::string unusable;
    if (std::optional<RunData> before = made_before(run, unusable)) {
      if (before->ok() || !options_.retry) set(entry, std::move(*before));
      return;
    }
    if (!unusable.empty() && !options_.quiet) {
      std::cerr << "pride: warning: " << unusable << "; the run starts again" << std::endl;
    }
    const fs::path failed = run.folder / kFailure;
    if (options_.retry || !fs::exists(failed)) return;
    try {
      set(entry, failure(run, read_json(failed).at("error")));
    } catch (const std::exception&) {
      // the file is incomplete: the run starts again
    }
  }

  std::vector<Trial> trials_of(const Choice& choice) const {
    const std::string& by = plan_.experiment.tune->by;
    std::vector<Trial> trials;
    for (std::size_t i = 0; i < choice.tried.size(); ++i) {
      const Entry& entry = *choice.runs[i];
      if (is_missing(entry)) continue;
      const auto metric = entry.result.final.find(by);
      trials.push_back({.point = choice.tried[i]});
      if (entry.state != State::kDone || metric == entry.result.final.end()) continue;
      trials.back().loss = by == "loss" ? metric->second : -metric->second;
    }
    return trials;
  }

  void choose(Choice& choice) const {
    choice.trials = trials_of(choice);
    choice.complete = !any_missing(choice) && next_points(choice).empty();
    const Trial* best = best_trial(choice.trials);
    choice.chosen = choice.complete && best != nullptr ? choice.points[best->point] : Point();
  }

  // Makes all missing runs; false if stop_asked_() ended it before.
  bool make_missing() {
    const auto jobs = static_cast<std::size_t>(options_.jobs > 0 ? options_.jobs : cores());
    std::vector<std::thread> threads;
    all_ended_ = false;
    for (std::size_t i = 0; i < std::min(runs.entries.size(), jobs); ++i) {
      threads.emplace_back([this] { work(); });
    }
    std::thread pulse([this] { tell_running(); });
    for (std::thread& thread : threads) thread.join();
    {
      const std::lock_guard lock(mutex_);
      all_ended_ = true;
      ended_.notify_all();
    }
    pulse.join();
    if (broken_) std::rethrow_exception(broken_);
    return std::ranges::none_of(runs.entries, is_missing);
  }

  // A thread: makes one missing run after the other, in the order of the entries.
  void work() {
    std::unique_lock lock(mutex_);
    while (!broken_ && !stop_asked_()) {
      const auto next = std::ranges::find_if(
          runs.entries, [](const Entry& entry) { return is_missing(entry) && !entry.taken; });
      if (next == runs.entries.end()) return;
      const int workers = next->run.workers;
      if (options_.jobs == 0 && running_ > 0 && busy_workers_ + workers > cores()) {
        ended_.wait_for(lock, kSignalPoll);  // polls, because a signal does not notify
        continue;
      }
      next->taken = true;
      ++running_;
      busy_workers_ += workers;
      lock.unlock();
      make(*next);
      lock.lock();
      --running_;
      busy_workers_ -= workers;
      ended_.notify_all();
    }
  }

  // Only this thread uses the entry until finish().
  void make(Entry& entry) {
    try {
      const auto start = std::chrono::steady_clock::now();
      fs::remove(entry.run.folder / kFailure);
      std::optional<RunData> result = make_run(entry.run, stop_asked_);
      finish(entry, std::move(result), seconds_since(start));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      broken_ = std::current_exception();
    }
  }

  void finish(Entry& entry, std::optional<RunData> result, double seconds) {
    if (!result && stop_asked_()) return;  // the next call starts this run again
    if (!result) result = failure(entry.run, kStoppedBySignal);
    // no record for a killed run, which may succeed the next time
    if (!result->ok() && result->summary.is_null() && !was_killed(*result)) {
      const nlohmann::json record = {{"error", result->error}, {"arguments", entry.run.arguments}};
      write_file(entry.run.folder / kFailure, record.dump(2) + "\n");
    }
    const std::lock_guard lock(mutex_);
    set(entry, std::move(*result));
    made_samples_ += entry.run.samples;
    if (!options_.quiet) tell(entry, seconds);
    write();
  }

  void tell(const Entry& entry, double seconds) const {
    const auto missing = std::ranges::count_if(runs.entries, is_missing);
    std::string text = concat("[", std::ssize(runs.entries) - missing, "/", runs.entries.size(),
                              "] ", name_of(entry.run), ": ");
    for (const char* key : {"loss", "bits_per_byte", "perplexity", "accuracy"}) {
      const auto metric = entry.result.final.find(key);
      if (metric != entry.result.final.end()) text += concat(key, " ", metric->second, ", ");
    }
    if (!entry.result.ok()) text += entry.result.error + ", ";
    std::cerr << text << clock_text(seconds) << time_left() << std::endl;
  }

  // A thread: prints the last progress line of each running run every interval_.
  void tell_running() {
    if (!interval_) return;
    std::unique_lock lock(mutex_);
    auto next = std::chrono::steady_clock::now() + *interval_;
    while (!ended_.wait_until(lock, next, [&] { return all_ended_; })) {
      next += *interval_;
      for (const Entry& entry : runs.entries) {
        if (!entry.taken || !is_missing(entry)) continue;
        std::cerr << "... " << name_of(entry.run) << ": " << last_progress(entry.run.folder)
                  << std::endl;
      }
    }
  }

  // From the remaining samples and the rate so far, which includes parallel runs.
  std::string time_left() const {
    double left = 0;
    for (const Entry& entry : runs.entries) left += is_missing(entry) ? entry.run.samples : 0;
    if (left == 0 || made_samples_ == 0) return "";
    const double seconds = seconds_since(began_) / made_samples_ * left;
    const bool more = !std::ranges::all_of(runs.choices, &Choice::complete);
    return concat(", about ", clock_text(seconds), " left", more ? " of tuning" : "");
  }

  void write() const {
    std::string lines;
    for (const Entry& entry : runs.entries) {
      if (!is_missing(entry)) lines += record_of(plan_, entry).dump() + "\n";
    }
    write_file(plan_.out / "sweep.jsonl", lines);
    write_file(plan_.out / "sweep.json", overview_of(plan_, runs).dump(2) + "\n");
  }

  const ExperimentPlan& plan_;
  RunnerOptions options_;
  bool (*stop_asked_)() noexcept;
  std::optional<std::chrono::milliseconds> interval_;  // between progress lines; none: no lines
  std::map<std::string, Entry*> by_id_;
  std::chrono::steady_clock::time_point began_;

  // mutex_ guards all below, and the entries during runs
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0, busy_workers_ = 0;
  bool all_ended_ = false;
  std::exception_ptr broken_;
  double made_samples_ = 0;
};

}  // namespace

Runs known_runs(const ExperimentPlan& plan, const RunnerOptions& options) {
  return std::move(Runner(plan, options, nullptr).runs);
}

Runs make_runs(const ExperimentPlan& plan, const RunnerOptions& options,
               bool (*stop_asked)() noexcept) {
  Runner runner(plan, options, stop_asked);
  runner.make_all();
  return std::move(runner.runs);
}

}  // namespace pride::app
