// SPDX-License-Identifier: Apache-2.0
#include "experiments/table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "commands.h"
#include "pride/error.h"
#include "text/table.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSameBytes = 0.01;  // late steps that differ less are not worth a second number

// what decides a run's initial values and first batch, beside its seed
constexpr const char* kStart[] = {"task",       "model",   "layers",    "heads",
                                  "width",      "context", "patch",     "batch",
                                  "image-size", "shots",   "skip-long", "accumulate",
                                  "sharding",   "workers", "init-std",  "embedding-std"};

std::vector<const RunResult*> good_runs(const Row& row) {
  std::vector<const RunResult*> good;
  for (const RunResult* result : row.runs) {
    if (result->ok()) good.push_back(result);
  }
  return good;
}

// False for a run that was to have the rate that tuning chooses, and got none.
bool known(double rate) { return std::isfinite(rate); }

template <typename Value>
std::vector<double> each(const std::vector<const RunResult*>& runs, const Value& value) {
  std::vector<double> values;
  for (const RunResult* run : runs) values.push_back(value(*run));
  return values;
}

double mean_bytes(const std::vector<const RunResult*>& runs) {
  return spread_of(each(runs, [](const RunResult& r) { return r.bytes; })).mean;
}
double mean_late_bytes(const std::vector<const RunResult*>& runs) {
  return spread_of(each(runs, [](const RunResult& r) { return r.late_bytes; })).mean;
}
double mean_step_ms(const std::vector<const RunResult*>& runs) {
  return spread_of(each(runs, [](const RunResult& r) { return r.step_ms; })).mean;
}

// what the tasks call their result, next to the loss
std::string second_metric(const std::vector<Row>& rows) {
  for (const char* key : {"accuracy", "bits_per_byte", "perplexity"}) {
    for (const Row& row : rows) {
      for (const RunResult* run : row.runs) {
        if (run->final.contains(key)) return key;
      }
    }
  }
  return "train_loss";
}

std::string heading(const std::string& metric) {
  std::string text = metric;
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// "4,930,736", or with a number for the end of the run where a method's beginning is dearer
std::string bytes_cell(double mean, double late) {
  const bool same = std::abs(late - mean) <= kSameBytes * mean;
  return same ? grouped(mean) : concat(grouped(mean), " (late ", grouped(late), ")");
}

std::string ratio_cell(double mean, double late, double ring) {
  const std::string all = ratio_text(mean, ring), end = ratio_text(late, ring);
  const bool same = std::abs(late - mean) <= kSameBytes * mean;
  return same ? all : concat(all, " (late ", end, ")");
}

std::string milliseconds(double ms) {
  const double digits = ms < 10 ? 10 : 1;  // one decimal below 10
  return concat(std::round(ms * digits) / digits);
}

// Of the first run; "-" if the method's default holds.
std::string beta2_of(const Row& row) {
  const nlohmann::json& settings = row.runs.front()->run.settings;
  const auto found = settings.find("beta2");
  const bool set = found != settings.end() && found->is_number();
  return set ? number_text(found->get<double>()) : "-";
}

std::vector<std::string> line_of(const Row& row, const std::string& metric) {
  const auto good = good_runs(row);
  std::string name = concat("`", row.label, "`");
  if (good.size() < row.runs.size()) {
    name += concat(" (", good.size(), " of ", row.runs.size(), " runs)");
  }
  const double first_rate = row.runs.front()->run.rate;
  const std::string rate = known(first_rate) ? number_text(first_rate) : "?";
  if (good.empty()) return {name, rate, "failed", "failed", "-", "-", "-"};
  const auto metric_cell = [&](const std::string& key) {
    for (const RunResult* run : good) {
      if (!run->final.contains(key)) return std::string("-");  // another task's
    }
    return spread_text(each(good, [&](const RunResult& r) { return r.final.at(key); }));
  };
  const double ring = fp32_ring_bytes(good.front()->parameters, good.front()->world);
  const double bytes = mean_bytes(good), late = mean_late_bytes(good);
  return {name,
          rate,
          metric_cell("loss"),
          metric_cell(metric),
          bytes_cell(bytes, late),
          ratio_cell(bytes, late, ring),
          milliseconds(mean_step_ms(good))};
}

std::string failures(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    for (const RunResult* result : row.runs) {
      if (result->ok()) continue;
      const bool tell = known(result->run.rate) && !row.rate_in_label;
      text += concat("\nfailed: ", row.label,
                     tell ? concat(", lr ", number_text(result->run.rate)) : "", ", seed ",
                     result->run.seed, ": ", result->error);
    }
  }
  return text.empty() ? "" : text + "\n";
}

// "lion, workers 4"
std::string name_of(const Choice& choice) {
  return concat("`", choice.cell->label, text_of(choice.cell->varied), "`");
}

// What [tune] tried: "lr 1e-3, beta2 0.9: 2.150; ..."
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
  return text.empty() ? "" : concat("\nPoints that [tune] tried, on its own seed:\n", text, "\n");
}

// "lion, workers 4: lr 1e-2"; empty if nothing was chosen at an end
std::string chosen_at_end(const Choice& choice) {
  std::string text;
  for (const std::string& flag : at_end_of_grid(choice)) {
    const auto chosen = std::ranges::find(choice.chosen, flag, &Point::value_type::first);
    text += concat(text.empty() ? ": " : ", ", flag, " ", chosen->second);
  }
  return text.empty() ? "" : name_of(choice) + text;
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

Json spread_json(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  return {{"mean", spread.mean}, {"sd", spread.deviation}, {"n", values.size()}};
}

}  // namespace

std::vector<Row> rows_of(const std::deque<Entry>& entries) {
  std::vector<Row> rows;
  for (const Entry& entry : entries) {
    if (entry.run.tuning || entry.state == Entry::State::kMissing) continue;
    const std::string label = entry.run.label + text_of(entry.run.varied);
    auto row = std::ranges::find(rows, label, &Row::label);
    if (row == rows.end()) {
      row = rows.insert(row, {.label = label, .rate_in_label = has_rate(entry.run.varied)});
    }
    row->runs.push_back(&entry.result);
  }
  return rows;
}

std::string results_table(const std::vector<Row>& rows, const std::string& metric) {
  std::vector<std::vector<std::string>> lines = {{"method", "lr", "loss", heading(metric),
                                                  "bytes sent per step and rank", "of fp32 ring",
                                                  "ms per step"}};
  for (const Row& row : rows) lines.push_back(line_of(row, metric));
  const bool betas = std::ranges::any_of(rows, [](const Row& row) { return beta2_of(row) != "-"; });
  if (betas) {
    lines.front().insert(lines.front().begin() + 2, "beta2");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      lines[i + 1].insert(lines[i + 1].begin() + 2, beta2_of(rows[i]));
    }
  }
  return markdown_table(lines, 1) + failures(rows);
}

std::string experiment_table(const std::deque<Entry>& entries, const std::vector<Choice>& choices) {
  const std::vector<Row> rows = rows_of(entries);
  const std::string tried = tried_points(choices);
  if (rows.empty()) return "no run is complete\n" + tried;
  std::string notes;
  for (const Choice& choice : choices) {
    const std::string note = chosen_at_end(choice);
    if (!note.empty()) notes += concat("\n- ", note);
  }
  if (!notes.empty()) {
    notes = concat("\nChosen at the end of [tune.grid], better values may lie beyond it:\n", notes,
                   "\n");
  }
  return results_table(rows, second_metric(rows)) + tried + notes;
}

Json results_json(const Row& row) {
  const auto good = good_runs(row);
  if (good.empty()) return nullptr;
  Json final = Json::object();
  for (const auto& [key, value] : good.front()->final) {
    const auto has = [&key = key](const RunResult* r) { return r->final.contains(key); };
    if (!std::ranges::all_of(good, has)) continue;
    final[key] =
        spread_json(each(good, [&key = key](const RunResult& r) { return r.final.at(key); }));
  }
  const double ring = fp32_ring_bytes(good.front()->parameters, good.front()->world);
  const double bytes = mean_bytes(good), late = mean_late_bytes(good);
  return {{"final", final},
          {"bytes_per_step", bytes},
          {"late_bytes_per_step", late},
          {"ratio_to_fp32_ring", ring > 0 ? Json(bytes / ring) : Json(nullptr)},
          {"late_ratio_to_fp32_ring", ring > 0 ? Json(late / ring) : Json(nullptr)},
          {"step_ms", mean_step_ms(good)}};
}

std::vector<std::string> at_end_of_grid(const Choice& choice) {
  std::vector<std::string> flags;
  for (const auto& [flag, value] : choice.chosen) {
    const std::set<double> numbers = numbers_of(choice.points, flag);
    if (numbers.size() < 2) continue;
    const double chosen = std::strtod(value.c_str(), nullptr), least = *numbers.begin();
    if (chosen == *numbers.rbegin() || (chosen == least && least != 0)) flags.push_back(flag);
  }
  return flags;
}

std::string text_of(const Point& point) {
  std::string text;
  for (const auto& [flag, value] : point) text += concat(", ", flag, " ", value);
  return text;
}

std::vector<std::string> unequal_starts(const std::deque<Entry>& entries) {
  std::map<std::string, const RunResult*> first;
  std::vector<std::string> found;
  for (const Entry& entry : entries) {
    const RunResult& result = entry.result;
    if (entry.state == Entry::State::kMissing || result.summary.is_null()) continue;
    std::string key = concat(entry.run.seed, " ", entry.run.data_hash);
    for (const char* flag : kStart) {
      key += concat(" ", entry.run.settings.value(flag, nlohmann::json()).dump());
    }
    const RunResult& other = *first.emplace(key, &result).first->second;
    if (result.first_loss == other.first_loss) continue;
    found.push_back(concat(result.run.folder.string(), " and ", other.run.folder.string(),
                           " have seed ", result.run.seed, " and began with different losses"));
  }
  return found;
}

}  // namespace pride::app
