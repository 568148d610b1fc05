// SPDX-License-Identifier: Apache-2.0
#include "experiments/records.h"

#include <algorithm>

#include "commands.h"
#include "experiments/table.h"
#include "pride/error.h"
#include "shell_quoted.h"
#include "train/build_info.h"
#include "train/process.h"
#include "train_names.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;
using State = Entry::State;

// of a run's summary, what its line repeats
constexpr const char* kFacts[] = {"settings",      "task",    "data",     "model",
                                  "world",         "threads", "epochs",   "samples_per_step",
                                  "steps_planned", "seconds", "transport"};

Json json_of(const Point& point) {
  Json json = Json::object();
  for (const auto& [flag, value] : point) json[flag] = value;
  return json;
}

int count(const std::deque<Entry>& entries, State state) {
  return static_cast<int>(
      std::count_if(entries.begin(), entries.end(),
                    [state](const Entry& entry) { return entry.state == state; }));
}

// Runs that [tune] has yet to decide on; they have no entry.
int undecided(const std::vector<Choice>& choices) {
  int runs = 0;
  for (const Choice& choice : choices) {
    if (!choice.complete) runs += static_cast<int>(choice.cell->seeds.size());
  }
  return runs;
}

}  // namespace

std::string name_of(const Run& run) {
  return concat(run.label, run.tuning ? " tuning" : "", text_of(run.varied), ", seed ", run.seed);
}

Json record_of(const ExperimentPlan& plan, const Entry& entry) {
  std::string command = "pride train";
  for (const std::string& argument : entry.run.arguments) command += " " + shell_quoted(argument);
  Json json = {{"id", entry.run.id},
               {"experiment", plan.experiment().name},
               {"phase", entry.run.tuning ? "tune" : "run"},
               {"status", entry.state == State::kDone ? "done" : "failed"},
               {"label", entry.run.label},
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

Json overview_of(const ExperimentPlan& plan, const std::deque<Entry>& entries,
                 const std::vector<Choice>& choices, bool complete) {
  Json tuned = Json::array();
  for (const Choice& choice : choices) {
    tuned.push_back({{"label", choice.cell->label},
                     {"cell", json_of(choice.cell->varied)},
                     {"chosen", choice.chosen.empty() ? Json(nullptr) : json_of(choice.chosen)},
                     {"at_end_of_grid", at_end_of_grid(choice)},
                     {"tried", choice.runs}});
  }
  Json rows = Json::array();
  for (const Row& row : rows_of(entries)) {
    Json runs = Json::array();
    for (const RunResult* result : row.runs) runs.push_back(result->run.id);
    const nlohmann::json& settings = row.runs.front()->run.settings;  // null: refused
    const double rate = row.runs.front()->run.rate;  // not a number: tuning found none
    rows.push_back({{"row", row.label},
                    {"lr", rate == rate ? Json(rate) : Json(nullptr)},
                    {"beta2", settings.is_object() ? Json(settings.value("beta2", nlohmann::json()))
                                                   : Json(nullptr)},
                    {"results", results_json(row)},
                    {"runs", runs}});
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
          {"flags", experiment.shared},
          {"set", plan.given()},
          {"tuned", tuned},
          {"rows", rows},
          {"unequal_starts", unequal_starts(entries)},
          {"file", experiment.text}};
}

std::string list_of_runs(const ExperimentPlan& plan, const std::deque<Entry>& entries,
                         const std::vector<Choice>& choices) {
  std::string text;
  for (const Entry& entry : entries) {
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
