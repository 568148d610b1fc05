// Records of an experiment's runs: JSON lines, an overview in JSON, a Markdown table.
// SPDX-License-Identifier: Apache-2.0
#include "experiments/runner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "pride/error.h"
#include "program/build_info.h"
#include "program/table.h"
#include "train/process.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;
using State = Entry::State;

// fields of a run's summary that its line in sweep.jsonl repeats
constexpr const char* kFacts[] = {"param_hash",    "steps",
                                  "steps_skipped", "method",
                                  "isa",           "versions",
                                  "settings",      "task",
                                  "data",          "model",
                                  "world",         "threads",
                                  "epochs",        "samples_per_step",
                                  "steps_planned", "seconds",
                                  "transport"};

// flags that determine a run's initial values and first batch, besides its seed
constexpr const char* kStart[] = {
    "task",     "model",   "layers",     "heads",         "width",        "context",
    "patch",    "batch",   "image-size", "shots",         "skip-long",    "accumulate",
    "sharding", "workers", "init-std",   "embedding-std", "participation"};

constexpr double kSameBytes = 0.01;  // below this share, the bytes of late steps are not shown

// The finished runs of one cell, one per seed; `good`: those with a result.
struct Row {
  std::string label;  // with varied flags: "lion, workers 4"
  std::vector<const Entry*> runs = {};
  std::vector<const RunData*> good = {};

  const Run& first() const { return runs.front()->run; }

  template <typename Value>
  std::vector<double> values(const Value& value) const {
    std::vector<double> found;
    for (const RunData* run : good) found.push_back(std::invoke(value, *run));
    return found;
  }
  double mean_bytes() const { return spread_of(values(&RunData::bytes_per_step)).mean; }
  double late_bytes() const { return spread_of(values(&RunData::late_bytes_per_step)).mean; }
  double step_ms() const { return spread_of(values(&RunData::step_ms)).mean; }
  double ring_bytes() const {
    return fp32_ring_bytes(good.front()->parameters(), good.front()->world());
  }
  // None unless all runs have the metric.
  std::vector<double> finals(const std::string& key) const {
    const auto has = [&](const RunData* run) { return run->final.contains(key); };
    if (!std::ranges::all_of(good, has)) return {};
    return values([&](const RunData& run) { return run.final.at(key); });
  }
};

// ", workers 4, lr 1e-3"
std::string text_of(const Point& point) {
  std::string text;
  for (const auto& [flag, value] : point) text += concat(", ", flag, " ", value);
  return text;
}

Json json_of(const Point& point) {
  Json json = Json::object();
  for (const auto& [flag, value] : point) json[flag] = value;
  return json;
}

int count(const Runs& runs, State state) {
  return static_cast<int>(std::ranges::count(runs.entries, state, &Entry::state));
}

// The number of runs that wait for [tune] and have no entry yet.
int undecided(const Runs& runs) {
  int n = 0;
  for (const Choice& choice : runs.choices) {
    if (!choice.complete) n += static_cast<int>(choice.cell->seeds.size());
  }
  return n;
}

std::vector<Row> rows_of(const std::deque<Entry>& entries) {
  std::vector<Row> rows;
  for (const Entry& entry : entries) {
    if (entry.run.tuning || entry.state == State::kMissing) continue;
    const std::string label = entry.run.label + text_of(entry.run.varied);
    auto row = std::ranges::find(rows, label, &Row::label);
    if (row == rows.end()) row = rows.insert(row, {.label = label});
    row->runs.push_back(&entry);
    if (entry.result.ok()) row->good.push_back(&entry.result);
  }
  return rows;
}

// The first metric besides the loss that a run has.
std::string second_metric(const std::vector<Row>& rows) {
  for (const char* key : {"accuracy", "bits_per_byte", "perplexity"}) {
    for (const Row& row : rows) {
      for (const Entry* entry : row.runs) {
        if (entry->result.final.contains(key)) return key;
      }
    }
  }
  return "train_loss";
}

// Two numbers if a method's first steps send more: "4,930,736 (late 154,504)".
template <typename Text>
std::string with_late(const Row& row, const Text& text) {
  const double mean = row.mean_bytes(), late = row.late_bytes();
  const bool same = std::abs(late - mean) <= kSameBytes * mean;
  return same ? text(mean) : concat(text(mean), " (late ", text(late), ")");
}

std::string milliseconds(double ms) {
  const double digits = ms < 10 ? 10 : 1;  // one decimal below 10
  return concat(std::round(ms * digits) / digits);
}

// beta2 of the first run; null if it is the method's default, or if the run was refused.
Json beta2_of(const Row& row) {
  const nlohmann::json& settings = row.first().settings;
  return settings.is_object() ? Json(settings.value("beta2", nlohmann::json())) : Json(nullptr);
}

// "?" if tuning found no rate.
std::string rate_text(const Run& run) {
  return std::isfinite(run.rate) ? number_text(run.rate) : "?";
}

std::vector<std::string> line_of(const Row& row, const std::string& metric) {
  std::string name = concat("`", row.label, "`");
  if (row.good.size() < row.runs.size()) {
    name += concat(" (", row.good.size(), " of ", row.runs.size(), " runs)");
  }
  const Json beta2 = beta2_of(row);
  std::vector<std::string> line = {name, rate_text(row.first()),
                                   beta2.is_number() ? number_text(beta2.get<double>()) : "-"};
  if (row.good.empty()) {
    for (const char* cell : {"failed", "failed", "-", "-", "-"}) line.emplace_back(cell);
    return line;
  }
  for (const std::string& key : {std::string("loss"), metric}) {
    const std::vector<double> values = row.finals(key);
    line.push_back(values.empty() ? "-" : spread_text(values));
  }
  line.push_back(with_late(row, grouped));
  line.push_back(with_late(row, [&](double n) { return ratio_text(n, row.ring_bytes()); }));
  line.push_back(milliseconds(row.step_ms()));
  return line;
}

std::string failures(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    for (const Entry* entry : row.runs) {
      const Run& run = entry->run;
      if (entry->result.ok()) continue;
      const bool tell = std::isfinite(run.rate) && !has_rate(run.varied);
      text += concat("\nfailed: ", row.label, tell ? concat(", lr ", number_text(run.rate)) : "",
                     ", seed ", run.seed, ": ", entry->result.error);
    }
  }
  return text.empty() ? "" : text + "\n";
}

std::string results_table(const std::vector<Row>& rows) {
  const std::string metric = second_metric(rows);
  std::string heading = metric;
  std::ranges::replace(heading, '_', ' ');
  std::vector<std::vector<std::string>> lines = {{"method", "lr", "beta2", "loss", heading,
                                                  "bytes sent per step and rank", "of fp32 ring",
                                                  "ms per step"}};
  for (const Row& row : rows) lines.push_back(line_of(row, metric));
  if (std::none_of(lines.begin() + 1, lines.end(), [](const auto& l) { return l[2] != "-"; })) {
    for (auto& line : lines) line.erase(line.begin() + 2);
  }
  return markdown_table(lines, 1) + failures(rows);
}

// A row's means and deviations; null if no run has a result.
Json results_json(const Row& row) {
  if (row.good.empty()) return nullptr;
  Json final = Json::object();
  for (const auto& [key, value] : row.good.front()->final) {
    const std::vector<double> values = row.finals(key);
    if (values.empty()) continue;
    const Spread spread = spread_of(values);
    final[key] = {{"mean", spread.mean}, {"sd", spread.deviation}, {"n", values.size()}};
  }
  const double bytes = row.mean_bytes(), late = row.late_bytes(), ring = row.ring_bytes();
  const auto ratio = [ring](double n) { return ring > 0 ? Json(n / ring) : Json(nullptr); };
  return {{"final", final},
          {"bytes_per_step", bytes},
          {"late_bytes_per_step", late},
          {"ratio_to_fp32_ring", ratio(bytes)},
          {"late_ratio_to_fp32_ring", ratio(late)},
          {"step_ms", row.step_ms()}};
}

// "`lion, workers 4`"
std::string name_of(const Choice& choice) {
  return concat("`", choice.cell->label, text_of(choice.cell->varied), "`");
}

// The points that [tune] tried: "lr 1e-3, beta2 0.9: 2.150; ...".
std::string tried_points(const std::vector<Choice>& choices) {
  std::string text;
  for (const Choice& choice : choices) {
    text += concat("\n- ", name_of(choice), ": ");
    for (std::size_t i = 0; i < choice.trials.size(); ++i) {
      const Trial& trial = choice.trials[i];
      const std::string point = text_of(choice.points[trial.point]).substr(2);
      text += concat(i == 0 ? "" : "; ", point, ": ",
                     trial.loss ? spread_text({std::abs(*trial.loss)}) : "failed");
    }
  }
  return text.empty() ? "" : concat("\nPoints tried by [tune], on its own seed:\n", text, "\n");
}

// The flags whose chosen value is the largest or smallest of its axis (except 0), so that a better
// one may lie beyond it. Axes with one value or with words do not count.
std::vector<std::string> at_end_of_grid(const Choice& choice) {
  std::vector<std::string> flags;
  for (const auto& [flag, value] : choice.chosen) {
    std::set<double> numbers;
    bool words = false;
    for (const Point& point : choice.points) {
      const auto at = std::ranges::find(point, flag, &Point::value_type::first);
      const auto number = at != point.end() ? number_of(at->second) : std::nullopt;
      words = words || !number;
      if (number) numbers.insert(*number);
    }
    if (words || numbers.size() < 2) continue;
    const double chosen = number_of(value).value_or(0), least = *numbers.begin();
    if (chosen == *numbers.rbegin() || (chosen == least && least != 0)) flags.push_back(flag);
  }
  return flags;
}

// Notes of values at the end of their axis: "- `lion, workers 4`: lr 1e-2".
std::string chosen_at_end(const std::vector<Choice>& choices) {
  std::string notes;
  for (const Choice& choice : choices) {
    const std::vector<std::string> flags = at_end_of_grid(choice);
    for (const std::string& flag : flags) {
      const auto chosen = std::ranges::find(choice.chosen, flag, &Point::value_type::first);
      notes += flag == flags.front() ? concat("\n- ", name_of(choice), ": ") : ", ";
      notes += concat(flag, " ", chosen->second);
    }
  }
  if (notes.empty()) return "";
  return concat(
      "\nThese values are the first or last of [tune.grid]; better ones may lie beyond:\n", notes,
      "\n");
}

}  // namespace

std::string name_of(const Run& run) {
  return concat(run.label, run.tuning ? " tuning" : "", text_of(run.varied), ", seed ", run.seed);
}

Json record_of(const ExperimentPlan& plan, const Entry& entry) {
  const Run& run = entry.run;
  const RunData& result = entry.result;
  std::string command = "pride train";
  for (const std::string& argument : run.arguments) command += " " + shell_quoted(argument);
  Json json = {{"id", run.id},
               {"experiment", plan.experiment.name},
               {"phase", run.tuning ? "tune" : "run"},
               {"status", entry.state == State::kDone ? "done" : "failed"},
               {"label", run.label},
               {"cell", json_of(run.varied)},
               {"command", command},
               {"seed", run.seed},
               {"lr", run.rate},
               {"folder", "runs/" + run.id},  // relative to this file's folder
               {"arguments", run.arguments}};
  if (!result.ok()) json["error"] = result.error;
  if (result.summary.is_null()) return json;
  json["first_loss"] = result.first_loss;
  json["final"] = result.final;
  json["bytes_per_step"] = result.bytes_per_step;
  json["late_bytes_per_step"] = result.late_bytes_per_step;
  json["step_ms"] = result.step_ms();
  for (const char* key : kFacts) {
    const auto found = result.summary.find(key);
    if (found != result.summary.end()) json[key] = *found;
  }
  return json;
}

Json overview_of(const ExperimentPlan& plan, const Runs& runs) {
  Json tuned = Json::array(), rows = Json::array();
  for (const Choice& choice : runs.choices) {
    Json tried = Json::array();
    for (const Entry* entry : choice.runs) tried.push_back(entry->run.id);
    tuned.push_back({{"label", choice.cell->label},
                     {"cell", json_of(choice.cell->varied)},
                     {"chosen", choice.chosen.empty() ? Json(nullptr) : json_of(choice.chosen)},
                     {"at_end_of_grid", at_end_of_grid(choice)},
                     {"tried", tried}});
  }
  for (const Row& row : rows_of(runs.entries)) {
    Json ids = Json::array();
    for (const Entry* entry : row.runs) ids.push_back(entry->run.id);
    rows.push_back({{"row", row.label},
                    {"lr", row.first().rate},
                    {"beta2", beta2_of(row)},
                    {"results", results_json(row)},
                    {"runs", ids}});
  }
  const Experiment& experiment = plan.experiment;
  return {{"experiment", experiment.name},
          {"title", experiment.title},
          {"note", experiment.note},
          {"version", kVersion},
          {"commit", kGitDescribe},
          {"torch", torch_version()},
          {"complete", runs.complete},
          {"done", count(runs, State::kDone)},
          {"failed", count(runs, State::kFailed)},
          {"missing", count(runs, State::kMissing) + undecided(runs)},
          {"flags", experiment.shared},
          {"set", plan.given},
          {"tuned", tuned},
          {"rows", rows},
          {"unequal_starts", unequal_starts(runs.entries)},
          {"file", experiment.text}};
}

std::string list_of_runs(const ExperimentPlan& plan, const Runs& runs) {
  std::string text;
  for (const Entry& entry : runs.entries) {
    const bool failed = entry.state == State::kFailed;
    text += failed ? "failed  " : entry.state == State::kDone ? "done    " : "missing ";
    text += concat(name_of(entry.run), failed ? ": " + entry.result.error : "", "\n");
  }
  text +=
      concat(plan.experiment.name, ": ", count(runs, State::kDone), " done, ",
             count(runs, State::kFailed), " failed, ", count(runs, State::kMissing), " missing");
  if (undecided(runs) > 0) text += concat(", ", undecided(runs), " after tuning");
  return text + "\n";
}

std::string experiment_table(const Runs& runs) {
  const std::vector<Row> rows = rows_of(runs.entries);
  const std::string tried = tried_points(runs.choices);
  if (rows.empty()) return "no run is complete\n" + tried;
  return results_table(rows) + tried + chosen_at_end(runs.choices);
}

std::vector<std::string> unequal_starts(const std::deque<Entry>& entries) {
  std::map<std::string, const RunData*> first;
  std::vector<std::string> found;
  for (const Entry& entry : entries) {
    const RunData& result = entry.result;
    if (entry.state == State::kMissing || result.summary.is_null()) continue;
    std::string key = concat(entry.run.seed, " ", entry.run.data_hash);
    for (const char* flag : kStart) {
      key += concat(" ", entry.run.settings.value(flag, nlohmann::json()).dump());
    }
    const RunData& other = *first.emplace(key, &result).first->second;
    if (result.first_loss == other.first_loss) continue;
    found.push_back(concat(result.folder, " and ", other.folder, " have seed ", entry.run.seed,
                           " and began with different losses"));
  }
  return found;
}

}  // namespace pride::app
