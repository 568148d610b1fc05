// SPDX-License-Identifier: Apache-2.0
#include "experiments/runner.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <numeric>
#include <thread>

#include "experiments/records.h"
#include "pride/error.h"
#include "train/clock.h"
#include "train/files.h"
#include "train/progress.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

using State = Entry::State;

constexpr std::chrono::milliseconds kPoll{50};
constexpr const char* kFailure = "failed.json";

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// That [tune] would have chosen.
constexpr double kUnknownRate = std::numeric_limits<double>::quiet_NaN();

RunData failure(const Run& run, const std::string& why) {
  return {.folder = run.folder.string(), .error = why};
}

}  // namespace

Runner::Runner(const ExperimentPlan& plan, const RunnerOptions& options,
               bool (*stop_asked)() noexcept)
    : plan_(plan), options_(options), stop_asked_(stop_asked) {
  if (plan.experiment().tune) {
    for (const Cell& cell : plan.cells()) {
      choices_.push_back({.cell = &cell, .points = combinations(cell.tune)});
    }
  }
  while (add_tuning_runs()) {
  }
  add_final_runs();
}

bool Runner::add_tuning_runs() {
  bool any = false;
  for (Choice& choice : choices_) {
    for (const std::size_t point : next_points(choice)) {
      choice.tried.push_back(point);
      choice.runs.push_back(add(plan_.tuning_run(*choice.cell, choice.points[point])).run.id);
      any = true;
    }
  }
  return any;
}

// Every point at once, or one by climbing, which waits for those before it.
std::vector<std::size_t> Runner::next_points(const Choice& choice) const {
  std::vector<std::size_t> points;
  if (plan_.experiment().tune->climb) {
    if (any_missing(choice)) return {};
    const auto next = next_point(choice.cell->tune, trials_of(choice));
    if (next) points.push_back(*next);
  } else if (choice.tried.empty()) {
    points.resize(choice.points.size());
    std::iota(points.begin(), points.end(), std::size_t{0});
  }
  return points;
}

// Those of which all is known. Seed by seed: what an interruption leaves behind can be compared.
void Runner::add_final_runs() {
  for (Choice& choice : choices_) choose(choice);
  std::size_t most_seeds = 0;
  for (const Cell& cell : plan_.cells()) most_seeds = std::max(most_seeds, cell.seeds.size());
  for (std::size_t k = 0; k < most_seeds; ++k) {
    for (std::size_t c = 0; c < plan_.cells().size(); ++c) {
      const Cell& cell = plan_.cells()[c];
      const Choice* choice = choices_.empty() ? nullptr : &choices_[c];
      if (k >= cell.seeds.size() || (choice != nullptr && !choice->complete)) continue;
      const Point chosen = choice != nullptr ? choice->chosen : Point();
      Entry& entry = add(plan_.final_run(cell, chosen, cell.seeds[k]));
      if (choice != nullptr && chosen.empty() && entry.state == State::kMissing) {
        entry.state = State::kFailed;
        if (has_rate(choice->points.front())) entry.run.rate = kUnknownRate;
        entry.result = failure(entry.run, why_no_choice(*choice));
      }
    }
  }
}

Entry& Runner::add(Run run) {
  const auto found = by_id_.find(run.id);
  if (found != by_id_.end()) return *found->second;
  Entry& entry = entries_.emplace_back(Entry{.run = std::move(run)});
  by_id_[entry.run.id] = &entry;
  look_for_earlier(entry);
  return entry;
}

void Runner::look_for_earlier(Entry& entry) const {
  const Run& run = entry.run;
  const auto set = [&](State state, RunData result) {
    entry.state = state;
    entry.result = std::move(result);
  };
  if (!entry.run.refused.empty()) return set(State::kFailed, failure(run, entry.run.refused));
  std::string unusable;
  if (std::optional<RunData> before = made_before(run, unusable)) {
    const bool ok = before->ok();
    if (ok || !options_.retry) set(ok ? State::kDone : State::kFailed, std::move(*before));
    return;
  }
  if (!unusable.empty() && !options_.quiet) {
    std::cerr << "pride: warning: " << unusable << "; the run is made anew" << std::endl;
  }
  const fs::path failed = run.folder / kFailure;
  if (options_.retry || !fs::exists(failed)) return;
  try {
    set(State::kFailed, failure(run, read_json(failed).at("error")));
  } catch (const std::exception&) {
    // cut short; the run is made anew
  }
}

bool Runner::any_missing(const Choice& choice) const {
  return std::ranges::any_of(
      choice.runs, [&](const std::string& id) { return by_id_.at(id)->state == State::kMissing; });
}

std::vector<Trial> Runner::trials_of(const Choice& choice) const {
  const std::string& by = plan_.experiment().tune->by;
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < choice.tried.size(); ++i) {
    const Entry& entry = *by_id_.at(choice.runs[i]);
    if (entry.state == State::kMissing) continue;
    const auto metric = entry.result.final.find(by);
    trials.push_back({.point = choice.tried[i]});
    if (entry.state != State::kDone || metric == entry.result.final.end()) continue;
    trials.back().loss = by == "loss" ? metric->second : -metric->second;
  }
  return trials;
}

void Runner::choose(Choice& choice) const {
  choice.trials = trials_of(choice);
  choice.complete = !any_missing(choice) && next_points(choice).empty();
  const Trial* best = best_trial(choice.trials);
  choice.chosen = choice.complete && best != nullptr ? choice.points[best->point] : Point();
}

std::string Runner::why_no_choice(const Choice& choice) const {
  return concat("not run: no point of [tune.grid] gave a result; the last: ",
                by_id_.at(choice.runs.back())->result.error);
}

bool Runner::run() {
  began_ = std::chrono::steady_clock::now();
  write(false);
  for (const Entry& entry : entries_) {
    if (!entry.run.refused.empty()) tell_refusal(entry);
  }
  bool all = make_missing();
  while (all && add_tuning_runs()) all = make_missing();
  if (all && !choices_.empty()) {
    add_final_runs();
    all = make_missing();
  }
  for (Choice& choice : choices_) choose(choice);
  write(all);
  return all;
}

bool Runner::make_missing() {
  const int jobs = options_.jobs;
  const auto most =
      std::min<std::size_t>(entries_.size(), static_cast<std::size_t>(jobs > 0 ? jobs : cores()));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < most; ++i) threads.emplace_back([this] { work(); });
  for (std::thread& thread : threads) thread.join();
  if (broken_) std::rethrow_exception(broken_);
  return !any_missing();
}

bool Runner::any_missing() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.state == State::kMissing; });
}

// A thread: one run after the other, as long as there are some.
void Runner::work() {
  std::unique_lock lock(mutex_);
  while (!broken_ && !stop_asked_()) {
    const bool left = std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.state == State::kMissing && !taken_[&entry];
    });
    if (!left) return;
    Entry* entry = next_that_fits();
    if (entry == nullptr) {
      ended_.wait_for(lock, kPoll);  // a signal wakes nobody
      continue;
    }
    taken_[entry] = true;
    ++running_;
    busy_workers_ += entry->run.workers;
    lock.unlock();
    make(*entry);
    lock.lock();
    --running_;
    busy_workers_ -= entry->run.workers;
    ended_.notify_all();
  }
}

// The first that is neither made nor being made, if there is room for it.
Entry* Runner::next_that_fits() {
  for (Entry& entry : entries_) {
    if (entry.state != State::kMissing || taken_[&entry]) continue;
    const bool fits =
        options_.jobs > 0 || running_ == 0 || busy_workers_ + entry.run.workers <= cores();
    return fits ? &entry : nullptr;
  }
  return nullptr;
}

// The entry is this thread's alone until finish().
void Runner::make(Entry& entry) {
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

void Runner::finish(Entry& entry, std::optional<RunData> result, double seconds) {
  if (!result && stop_asked_()) return;  // the run in progress: made anew next time
  const bool from_outside = !result;
  if (from_outside) result = failure(entry.run, kStoppedBySignal);
  // a run that was killed says nothing about the next try
  const bool again = was_killed(*result);
  if (!result->ok() && result->summary.is_null() && !again) {
    const nlohmann::json record = {{"error", result->error}, {"arguments", entry.run.arguments}};
    write_file(entry.run.folder / kFailure, record.dump(2) + "\n");
  }
  const std::lock_guard lock(mutex_);
  entry.state = result->ok() ? State::kDone : State::kFailed;
  entry.result = std::move(*result);
  entry.seconds = seconds;
  made_samples_ += entry.run.samples;
  tell(entry);
  write(false);
}

void Runner::tell(const Entry& entry) const {
  if (options_.quiet) return;
  const auto made = std::count_if(entries_.begin(), entries_.end(),
                                  [](const Entry& e) { return e.state != State::kMissing; });
  std::string text = concat("[", made, "/", entries_.size(), "] ", name_of(entry.run), ": ");
  for (const char* key : {"loss", "bits_per_byte", "perplexity", "accuracy"}) {
    const auto metric = entry.result.final.find(key);
    if (metric != entry.result.final.end()) text += concat(key, " ", metric->second, ", ");
  }
  if (!entry.result.ok()) text += entry.result.error + ", ";
  std::cerr << text << clock_text(entry.seconds) << time_left() << std::endl;
}

void Runner::tell_refusal(const Entry& entry) const {
  if (!options_.quiet) {
    std::cerr << "refused: " << name_of(entry.run) << ": " << entry.run.refused << std::endl;
  }
}

// By the samples that are left, at the pace so far: runs side by side are counted in it.
std::string Runner::time_left() const {
  double left = 0;
  for (const Entry& entry : entries_) {
    if (entry.state == State::kMissing) left += entry.run.samples;
  }
  if (left == 0 || made_samples_ == 0) return "";
  const double seconds = seconds_since(began_) / made_samples_ * left;
  const bool more = std::any_of(choices_.begin(), choices_.end(),
                                [](const Choice& choice) { return !choice.complete; });
  return concat(", about ", clock_text(seconds), " left", more ? " of tuning" : "");
}

void Runner::write(bool complete) const {
  std::string lines;
  for (const Entry& entry : entries_) {
    if (entry.state != State::kMissing) lines += record_of(plan_, entry).dump() + "\n";
  }
  write_file(plan_.out() / "sweep.jsonl", lines);
  write_file(plan_.out() / "sweep.json",
             overview_of(plan_, entries_, choices_, complete).dump(2) + "\n");
}

}  // namespace pride::app
