// SPDX-License-Identifier: Apache-2.0
#include "sweep/records.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "build_info.h"
#include "commands.h"
#include "compare/report.h"
#include "pride/error.h"
#include "shell_quoted.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;
using State = SweepEntry::State;

// of a run's summary, what its line repeats
constexpr const char* kFacts[] = {"settings",      "task",    "data",     "model",
                                  "world",         "threads", "epochs",   "samples_per_step",
                                  "steps_planned", "seconds", "transport"};

Json json_of(const Point& point) {
  Json json = Json::object();
  for (const auto& [flag, value] : point) json[flag] = value;
  return json;
}

std::string text_of(const Point& point) {
  std::string text;
  for (const auto& [flag, value] : point) text += concat(", ", flag, " ", value);
  return text;
}

int count(const std::deque<SweepEntry>& entries, State state) {
  return static_cast<int>(
      std::count_if(entries.begin(), entries.end(),
                    [state](const SweepEntry& entry) { return entry.state == state; }));
}

// Runs that [tune] has yet to decide on; they have no entry.
int undecided(const std::vector<Choice>& choices) {
  int runs = 0;
  for (const Choice& choice : choices) {
    if (!choice.complete) runs += static_cast<int>(choice.cell->seeds.size());
  }
  return runs;
}

std::string second_metric(const std::deque<SweepEntry>& entries) {
  for (const char* key : {"accuracy", "bits_per_byte", "perplexity"}) {
    for (const SweepEntry& entry : entries) {
      if (entry.result.final.contains(key)) return key;
    }
  }
  return "train_loss";
}

// The distinct values of a flag among the points, ascending; none if one is no number.
std::set<double> numbers_of(const std::vector<Point>& points, const std::string& flag) {
  std::set<double> numbers;
  for (const Point& point : points) {
    for (const auto& [name, value] : point) {
      if (name != flag) continue;
      char* end = nullptr;
      numbers.insert(std::strtod(value.c_str(), &end));
      if (value.empty() || *end != '\0') return {};
    }
  }
  return numbers;
}

// "lion, workers 4: lr 1e-2"; empty if nothing was chosen at an end
std::string chosen_at_end(const Choice& choice) {
  std::string text;
  for (const std::string& flag : at_end_of_grid(choice)) {
    const auto chosen = std::find_if(choice.chosen.begin(), choice.chosen.end(),
                                     [&](const auto& one) { return one.first == flag; });
    text += concat(text.empty() ? ": " : ", ", flag, " ", chosen->second);
  }
  if (text.empty()) return "";
  return concat("`", choice.cell->label, text_of(choice.cell->varied), "`", text);
}

}  // namespace

std::string name_of(const SweepRun& run) {
  return concat(run.run.label, run.run.tuning ? " tuning" : "", text_of(run.varied), ", seed ",
                run.run.seed);
}

Json record_of(const SweepPlan& plan, const SweepEntry& entry) {
  std::string command = "pride train";
  for (const std::string& argument : entry.run.run.arguments)
    command += " " + shell_quoted(argument);
  Json json = {{"id", entry.run.id},
               {"experiment", plan.experiment().name},
               {"phase", entry.run.run.tuning ? "tune" : "run"},
               {"status", entry.state == State::kDone ? "done" : "failed"},
               {"label", entry.run.run.label},
               {"cell", json_of(entry.run.varied)},
               {"command", command}};
  json.update(to_json(entry.result));
  json["folder"] = "runs/" + entry.run.id;  // within that of this file
  if (entry.result.summary.is_null()) return json;
  for (const char* key : kFacts) {
    const auto found = entry.result.summary.find(key);
    if (found != entry.result.summary.end()) json[key] = *found;
  }
  return json;
}

Json overview_of(const SweepPlan& plan, const std::deque<SweepEntry>& entries,
                 const std::vector<Choice>& choices, bool complete) {
  Json tuned = Json::array();
  for (const Choice& choice : choices) {
    tuned.push_back({{"label", choice.cell->label},
                     {"cell", json_of(choice.cell->varied)},
                     {"chosen", choice.chosen.empty() ? Json(nullptr) : json_of(choice.chosen)},
                     {"at_end_of_grid", at_end_of_grid(choice)},
                     {"tried", choice.tried}});
  }
  const Experiment& experiment = plan.experiment();
  return {{"experiment", experiment.name},
          {"title", experiment.title},
          {"note", experiment.note},
          {"version", kVersion},
          {"commit", kGitDescribe},
          {"torch", torch_version()},
          {"complete", complete},
          {"done", count(entries, State::kDone)},
          {"failed", count(entries, State::kFailed)},
          {"missing", count(entries, State::kMissing) + undecided(choices)},
          {"set", flags_instead(plan.options())},
          {"tuned", tuned},
          {"file", experiment.text}};
}

std::vector<std::string> at_end_of_grid(const Choice& choice) {
  std::vector<std::string> flags;
  for (const auto& [flag, value] : choice.chosen) {
    const std::set<double> numbers = numbers_of(choice.cell->tune_points, flag);
    if (numbers.size() < 2) continue;
    const double chosen = std::strtod(value.c_str(), nullptr), least = *numbers.begin();
    if (chosen == *numbers.rbegin() || (chosen == least && least != 0)) flags.push_back(flag);
  }
  return flags;
}

std::string sweep_table(const std::deque<SweepEntry>& entries, const std::vector<Choice>& choices) {
  std::vector<Entry> rows;
  for (const SweepEntry& entry : entries) {
    if (entry.run.run.tuning || entry.state == State::kMissing) continue;
    const std::string label = entry.run.run.label + text_of(entry.run.varied);
    const auto same = [&](const Entry& row) { return row.who.label == label; };
    auto row = std::find_if(rows.begin(), rows.end(), same);
    if (row == rows.end()) {
      row = rows.insert(row, Entry());
      row->who.label = label;
      row->rate_in_label = has_rate(entry.run.varied);
    }
    row->runs.push_back(entry.result);
  }
  if (rows.empty()) return "no run is complete\n";
  std::string notes;
  for (const Choice& choice : choices) {
    const std::string note = chosen_at_end(choice);
    if (!note.empty()) notes += concat("\n- ", note);
  }
  if (!notes.empty()) {
    notes = concat("\nChosen at the end of [tune.grid], better values may lie beyond it:\n", notes,
                   "\n");
  }
  return results_table(rows, second_metric(entries)) + notes;
}

std::string sweep_list(const SweepPlan& plan, const std::deque<SweepEntry>& entries,
                       const std::vector<Choice>& choices) {
  std::string text;
  for (const SweepEntry& entry : entries) {
    const bool failed = entry.state == State::kFailed;
    text += failed ? "failed  " : entry.state == State::kDone ? "done    " : "missing ";
    text += concat(name_of(entry.run), failed ? ": " + entry.result.error : "", "\n");
  }
  text += concat(plan.experiment().name, ": ", count(entries, State::kDone), " done, ",
                 count(entries, State::kFailed), " failed, ", count(entries, State::kMissing),
                 " missing");
  if (undecided(choices) > 0) text += concat(", ", undecided(choices), " after tuning");
  return text + "\n";
}

}  // namespace pride::app
