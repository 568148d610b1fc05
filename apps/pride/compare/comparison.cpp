// SPDX-License-Identifier: Apache-2.0
#include "compare/comparison.h"

#include <unistd.h>

#include <chrono>
#include <iostream>

#include "clock.h"
#include "compare/make.h"
#include "compare/rate_search.h"
#include "pride/error.h"
#include "train/files.h"
#include "train/progress.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr int kFewestTrials = 3;  // of a search: the best rate and its neighbours
constexpr const char* kClearLine = "\r\033[K";

}  // namespace

Comparison::Comparison(const ComparePlan& plan, bool (*stop_asked)() noexcept)
    : plan_(plan), stop_asked_(stop_asked) {
  for (const Contender& who : plan.contenders()) entries_.push_back({.who = who});
  const int n = static_cast<int>(entries_.size());
  tuning_.planned = plan.options().tune ? kFewestTrials * n : 0;
  training_.planned = static_cast<int>(plan.options().seeds.size()) * n;
}

bool Comparison::run() {
  try {
    if (plan_.options().tune) {
      for (Entry& entry : entries_) tune(entry);
    }
    // seed by seed: what an interruption leaves behind can be compared
    for (const std::uint64_t seed : plan_.options().seeds) {
      for (Entry& entry : entries_) train(entry, seed);
    }
  } catch (const Stopped&) {
    write(false);
    return false;
  }
  write(true);
  return true;
}

void Comparison::tune(Entry& entry) {
  const auto loss_at = [&](double rate) {
    if (entry.tuning.size() >= kFewestTrials) ++tuning_.planned;
    entry.tuning.push_back(result_of(plan_.run(entry.who, rate, plan_.options().tune_seed)));
    write(false);
    return entry.tuning.back().loss();
  };
  entry.trials = search_rate(nearest_grid_point(entry.who.rate), loss_at);
}

void Comparison::train(Entry& entry, std::uint64_t seed) {
  const Trial* best = best_trial(entry.trials);
  const double rate = best != nullptr ? best->rate : entry.who.rate;
  const Run run = plan_.run(entry.who, rate, seed);
  if (plan_.options().tune && best == nullptr) {
    entry.runs.push_back(
        {.run = run,
         .error = concat("not run, no rate that was tried gave a result; the last: ",
                         entry.tuning.back().error)});
    ++training_.done;
  } else {
    entry.runs.push_back(result_of(run));
  }
  write(false);
}

RunResult Comparison::result_of(const Run& run) {
  if (stop_asked_()) throw Stopped();
  Kind& kind = run.tuning ? tuning_ : training_;
  std::string unusable;
  if (const std::optional<RunResult> before = made_before(run, unusable)) {
    ++kind.done;
    tell(*before, 0);
    return *before;
  }
  if (!unusable.empty()) {
    std::cerr << "pride: warning: " << unusable << "; the run is made anew" << std::endl;
  }
  announce(run);
  const auto start = std::chrono::steady_clock::now();
  std::optional<RunResult> made = make_run(run, stop_asked_);
  if (!made) throw Stopped();
  RunResult result = std::move(*made);
  const double seconds = seconds_since(start);
  ++kind.done;
  ++kind.timed;
  kind.seconds += seconds;
  tell(result, seconds);
  return result;
}

std::string Comparison::name_of(const Run& run, int number) const {
  return concat("[", number, "/", tuning_.planned + training_.planned, "] ", run.label,
                run.tuning ? " tuning" : "", ", lr ", rate_text(run.rate), ", seed ", run.seed,
                ": ");
}

// A line that the result will replace.
void Comparison::announce(const Run& run) const {
  if (plan_.options().quiet || isatty(STDERR_FILENO) != 1) return;
  std::cerr << name_of(run, tuning_.done + training_.done + 1) << "running, see "
            << (run.folder / "log").string() << std::flush;
}

void Comparison::tell(const RunResult& result, double seconds) {
  if (plan_.options().quiet) return;
  std::string text = isatty(STDERR_FILENO) == 1 ? kClearLine : "";
  text += name_of(result.run, tuning_.done + training_.done);
  for (const char* key : {"loss", "bits_per_byte", "accuracy"}) {
    if (result.final.contains(key)) text += concat(key, " ", result.final.at(key), ", ");
  }
  if (!result.ok()) text += result.error + ", ";
  text += seconds > 0 ? clock_text(seconds) + time_left() : "made before";
  std::cerr << text << std::endl;
}

// Runs of a kind that has none yet are taken to last as long as those of the other.
std::string Comparison::time_left() const {
  const Kind& known = training_.timed > 0 ? training_ : tuning_;
  double left = 0;
  for (const Kind* kind : {&tuning_, &training_}) {
    const Kind& like = kind->timed > 0 ? *kind : known;
    left += (kind->planned - kind->done) * like.seconds / like.timed;
  }
  return concat(", about ", clock_text(left), " left");
}

void Comparison::write(bool complete) const {
  write_file(fs::path(plan_.options().out) / "compare.json",
             report_json(plan_, entries_, complete).dump(2) + "\n");
}

}  // namespace pride::app
