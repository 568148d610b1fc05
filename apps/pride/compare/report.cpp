// SPDX-License-Identifier: Apache-2.0
#include "compare/report.h"

#include <algorithm>
#include <cmath>

#include "build_info.h"
#include "commands.h"
#include "pride/error.h"
#include "text/table.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSameBytes = 0.01;  // late steps that differ less are not worth a second number

std::vector<const RunResult*> good_runs(const Entry& entry) {
  std::vector<const RunResult*> good;
  for (const RunResult& result : entry.runs) {
    if (result.ok()) good.push_back(&result);
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

// what the task calls its result, next to the loss
std::string second_metric(const ComparePlan& plan) {
  const auto task = plan.shared().find("task");
  const bool text = task == plan.shared().end() || task->second.front() == "lm";
  return text ? "bits_per_byte" : "accuracy";
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

std::vector<std::string> row_of(const Entry& entry, const std::string& metric) {
  const auto good = good_runs(entry);
  std::string name = concat("`", entry.who.label, "`");
  if (!entry.runs.empty() && good.size() < entry.runs.size()) {
    name += concat(" (", good.size(), " of ", entry.runs.size(), " runs)");
  }
  const bool has_rate = !entry.runs.empty() && known(entry.runs.front().run.rate);
  const std::string rate = has_rate ? rate_text(entry.runs.front().run.rate) : "?";
  if (good.empty()) {
    const std::string cell = entry.runs.empty() ? "-" : "failed";
    return {name, entry.runs.empty() ? "-" : rate, cell, cell, "-", "-", "-"};
  }
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

std::string failures(const std::vector<Entry>& entries) {
  std::string text;
  for (const Entry& entry : entries) {
    for (const RunResult& result : entry.runs) {
      if (result.ok()) continue;
      const bool tell = known(result.run.rate) && !entry.rate_in_label;
      text += concat("\nfailed: ", entry.who.label,
                     tell ? concat(", lr ", rate_text(result.run.rate)) : "", ", seed ",
                     result.run.seed, ": ", result.error);
    }
  }
  return text.empty() ? "" : text + "\n";
}

std::string tried_rates(const ComparePlan& plan, const std::vector<Entry>& entries) {
  if (!plan.options().tune) return "";
  std::string text = concat("\nLoss on seed ", plan.options().tune_seed, " at each rate tried:\n");
  for (const Entry& entry : entries) {
    if (entry.trials.empty()) continue;
    std::vector<Trial> sorted = entry.trials;
    std::sort(sorted.begin(), sorted.end(),
              [](const Trial& a, const Trial& b) { return a.point < b.point; });
    text += concat("\n- `", entry.who.label, "`:");
    for (const Trial& trial : sorted) {
      const std::string loss = std::isfinite(trial.loss) ? spread_text({trial.loss}) : "failed";
      text += concat(&trial == &sorted.front() ? " " : ", ", rate_text(trial.rate), ": ", loss);
    }
  }
  return text + "\n";
}

Json spread_json(const std::vector<double>& values) {
  const Spread spread = spread_of(values);
  return {{"mean", spread.mean}, {"sd", spread.deviation}, {"n", values.size()}};
}

Json results_json(const Entry& entry) {
  const auto good = good_runs(entry);
  if (good.empty()) return nullptr;
  Json final = Json::object();
  for (const auto& [key, value] : good.front()->final) {
    const auto has = [&key = key](const RunResult* r) { return r->final.contains(key); };
    if (!std::all_of(good.begin(), good.end(), has)) continue;
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

Json entry_json(const Entry& entry) {
  Json tried = Json::array(), runs = Json::array();
  for (const RunResult& result : entry.tuning) {
    Json trial = to_json(result);
    trial["loss"] = result.ok() ? Json(result.loss()) : Json(nullptr);
    tried.push_back(std::move(trial));
  }
  for (const RunResult& result : entry.runs) runs.push_back(to_json(result));
  const Json rate = entry.runs.empty() ? Json(nullptr) : Json(entry.runs.front().run.rate);
  return {{"label", entry.who.label},
          {"method", entry.who.method},
          {"set", entry.who.own},
          {"lr", rate},
          {"results", results_json(entry)},
          {"runs", runs},
          {"tried", tried}};
}

Json tuning_json(const CompareOptions& o) {
  if (!o.tune) return nullptr;
  const bool shorter = o.tune_epochs || o.tune_steps;
  return {{"seed", o.tune_seed},
          {"epochs", o.tune_epochs ? Json(*o.tune_epochs) : Json(nullptr)},
          {"steps", o.tune_steps ? Json(*o.tune_steps) : Json(nullptr)},
          {"own_length", shorter},
          {"selected_by", "final loss"},
          {"grid",
           "1, 3, 10, ...; until neither neighbour of the best rate is better, at most 20 rates"}};
}

// that wrote a summary, tuning runs among them
std::vector<const RunResult*> all_runs(const std::vector<Entry>& entries) {
  std::vector<const RunResult*> all;
  for (const Entry& entry : entries) {
    for (const auto* results : {&entry.runs, &entry.tuning}) {
      for (const RunResult& result : *results) {
        if (!result.summary.is_null()) all.push_back(&result);
      }
    }
  }
  return all;
}

// facts that all runs have in common, taken from any of them
Json common_fact(const std::vector<Entry>& entries, const char* key) {
  const auto all = all_runs(entries);
  return all.empty() ? Json(nullptr) : Json(all.front()->summary.at(key));
}

std::string data_hash(const RunResult& result) {
  return result.summary.at("data").at("hash").get<std::string>();
}

}  // namespace

std::string results_table(const std::vector<Entry>& entries, const std::string& metric) {
  std::vector<std::vector<std::string>> rows = {{"method", "lr", "loss", heading(metric),
                                                 "bytes sent per step and rank", "of fp32 ring",
                                                 "ms per step"}};
  for (const Entry& entry : entries) rows.push_back(row_of(entry, metric));
  return markdown_table(rows, 1) + failures(entries);
}

std::string report_table(const ComparePlan& plan, const std::vector<Entry>& entries) {
  return results_table(entries, second_metric(plan)) + tried_rates(plan, entries);
}

Json report_json(const ComparePlan& plan, const std::vector<Entry>& entries, bool complete) {
  Json methods = Json::array();
  int failed = 0;
  for (const Entry& entry : entries) {
    methods.push_back(entry_json(entry));
    for (const RunResult& result : entry.runs) failed += result.ok() ? 0 : 1;
  }
  return {{"version", kVersion},
          {"commit", kGitDescribe},
          {"torch", torch_version()},
          {"complete", complete},
          {"runs_failed", failed},
          {"seeds", plan.options().seeds},
          {"flags", plan.shared()},
          {"tune", tuning_json(plan.options())},
          {"task", common_fact(entries, "task")},
          {"data", common_fact(entries, "data")},
          {"model", common_fact(entries, "model")},
          {"world", common_fact(entries, "world")},
          {"steps_planned", common_fact(entries, "steps_planned")},
          {"unequal_starts", unequal_starts(entries)},
          {"methods", methods}};
}

std::vector<std::string> unequal_starts(const std::vector<Entry>& entries) {
  std::map<std::uint64_t, const RunResult*> first;  // of each seed
  const RunResult* first_of_all = nullptr;
  std::vector<std::string> found;
  const auto tell = [&found](const RunResult& a, const RunResult& b, const std::string& what) {
    found.push_back(concat(a.run.folder.string(), " and ", b.run.folder.string(), what));
  };
  for (const RunResult* result : all_runs(entries)) {
    const RunResult& other = *first.emplace(result->run.seed, result).first->second;
    if (first_of_all == nullptr) first_of_all = result;
    if (data_hash(*result) != data_hash(*first_of_all)) {
      tell(*result, *first_of_all, " were made with different data");
    } else if (result->first_loss != other.first_loss && data_hash(other) == data_hash(*result)) {
      tell(*result, other,
           concat(" have seed ", result->run.seed, " and began with different losses"));
    }
  }
  return found;
}

}  // namespace pride::app
