// SPDX-License-Identifier: Apache-2.0
#include "report/metrics_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include "pride/error.h"
#include "program/files.h"
#include "program/table.h"
#include "program/utf8.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The names that programs use for one value. The first that a file has counts.
using Names = std::array<const char*, 4>;

// A value of a step.
struct Value {
  const char* key;
  Names names;
  double highest = INFINITY;
  bool grows = false;  // from the start of the run on: finite and not negative
};
constexpr Value kValues[] = {
    {"loss", {"loss", "train_loss"}},
    {"lr", {"lr", "learning_rate"}},
    {"grad_norm", {"grad_norm"}},
    {"eval_loss", {"val_loss", "eval_loss", "test_loss"}},
    {"perplexity", {"val_perplexity", "eval_perplexity", "test_perplexity", "perplexity"}},
    {"accuracy", {"val_accuracy", "eval_accuracy", "test_accuracy", "accuracy"}, 1},
    {"seconds", {"seconds"}, INFINITY, true},
    {"bytes_sent", {"bytes_sent"}, INFINITY, true},
    {"epoch", {"epoch"}, INFINITY, true}};

// A value of the whole run.
struct Fact {
  enum Kind { kText, kCount, kNumber };
  const char* key;
  Names names;
  Kind kind;
};
constexpr Fact kFacts[] = {{"method", {"method", "optimizer"}, Fact::kText},
                           {"workers", {"workers", "ranks", "world_size"}, Fact::kCount},
                           {"parameters", {"parameters"}, Fact::kCount},
                           {"steps", {"steps"}, Fact::kCount},
                           {"seed", {"seed"}, Fact::kNumber},
                           {"task", {"task"}, Fact::kText},
                           {"model", {"model"}, Fact::kText},
                           {"data", {"data"}, Fact::kText}};
constexpr const char* kSettings = "settings";
constexpr double kMostWorkers = 65535, kMostOfACount = 1e15;

// Python's json writes NaN, Infinity and -Infinity, which JSON does not have. They become null.
std::string with_nulls(std::string_view line) {
  std::string text;
  for (bool in_text = false; !line.empty();) {
    std::size_t n = 1;
    std::string_view part = line.substr(0, 1);
    if (in_text && part == "\\") part = line.substr(0, n = 2);
    if (part == "\"") in_text = !in_text;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (in_text || !line.starts_with(word)) continue;
      n = word.size();
      part = "null";
    }
    text += part;
    line.remove_prefix(std::min(n, line.size()));
  }
  return text;
}

class MetricsFile {
 public:
  explicit MetricsFile(const fs::path& file) : file_(file.string()) {
    PRIDE_CHECK(!fs::is_directory(file), "--metrics ", file_,
                ": it is a folder; name one of `pride train` without --metrics");
    std::ifstream in(file, std::ios::binary);
    if (!in) throw DataError(concat(file_, ": cannot read"));
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for_each_line(text, [&](std::string_view line, std::size_t number) {
      if (line.find_first_not_of(" \t\r") == line.npos) return;
      const bool is_cut = line.data() + line.size() == text.data() + text.size();
      read_line(line, number, is_cut);
    });
    if (!unread_.empty()) throw DataError(unread_);
    if (text.empty()) throw DataError(concat(file_, ": it is empty"));
    if (steps_.empty()) throw DataError(concat(file_, ": no line has 'step'"));
  }

  RunData run(const std::string& label) {
    RunData run{.label = label, .source = file_, .folder = file_, .of_file = true};
    add_curves(run);
    add_final(run);
    add_summary(run);
    run.notes = notes_;
    return run;
  }

 private:
  struct At {
    double value;
    std::size_t line;
  };

  [[noreturn]] void refuse(std::size_t line, const std::string& why) const {
    throw DataError(concat(file_, ":", line, ": ", why));
  }

  void read_line(std::string_view line, std::size_t number, bool has_no_end) {
    const std::string place = concat(file_, ":", number);
    Json record;
    try {
      record = parse_json(with_nulls(line), place);
    } catch (const DataError& e) {
      const bool may_be_cut = std::string_view(e.what()).find(": not JSON") != std::string::npos;
      if (!line.starts_with('{') || !may_be_cut || !unread_.empty()) throw;
      notes_.push_back(concat("line ", number, " is incomplete and does not count"));
      if (!has_no_end) unread_ = e.what();
      return;
    }
    if (!unread_.empty()) {  // a killed run's last line: a resumed run goes back
      const Json step = record.is_object() ? record.value("step", Json()) : Json();
      const bool goes_back = step.is_number() && !steps_.empty() && step <= steps_.rbegin()->first;
      if (!goes_back) throw DataError(unread_);
      unread_.clear();
    }
    if (!record.is_object()) refuse(number, "not a JSON object");
    const Json type = record.value("type", Json());
    if (type == "step" || type == "eval") {
      refuse(number, "it is a line of `pride train`: name the run's folder, without --metrics");
    }
    for (const Fact& fact : kFacts) {
      for (const char* name : fact.names) {
        if (name != nullptr && record.contains(name)) add_fact(fact, name, record, number);
      }
    }
    if (record.contains(kSettings)) add_settings(record.at(kSettings), number);
    if (record.contains("step")) add_step(record, number);
  }

  void add_fact(const Fact& fact, const char* name, const Json& record, std::size_t number) {
    const Json& value = record.at(name);
    const auto must_be = [&](bool is, const char* what) {
      if (!is) refuse(number, concat("'", name, "' is ", value.dump(), ": must be ", what));
    };
    if (fact.kind == Fact::kText) must_be(value.is_string() && value != "", "a text");
    if (fact.kind == Fact::kNumber) must_be(value.is_number(), "a number");
    if (fact.kind == Fact::kCount) {
      const double count = value.is_number() ? value.get<double>() : 0;
      const double most = std::string_view(fact.key) == "workers" ? kMostWorkers : kMostOfACount;
      must_be(count >= 1 && count <= most && count == std::floor(count),
              concat("a whole number from 1 to ", most).c_str());
    }
    keep(name, value, number);
  }

  void add_settings(const Json& settings, std::size_t number) {
    if (!settings.is_object()) refuse(number, "'settings' is not an object");
    for (const auto& [name, value] : settings.items()) {
      std::string flag = name;  // weight_decay is the flag weight-decay
      std::ranges::replace(flag, '_', '-');
      keep(concat(kSettings, ".", flag), value, number);
    }
  }

  // A line may repeat a value of the run, as after a resume, but not change it.
  void keep(const std::string& name, const Json& value, std::size_t number) {
    const auto [known, is_new] = facts_.emplace(name, std::pair(value, number));
    const auto& [first, line] = known->second;
    if (is_new || first == value) return;
    refuse(number, concat("'", name, "' is ", value.dump(), ", in line ", line, " it is ",
                          first.dump(), ": a file has the lines of one run"));
  }

  void add_step(const Json& record, std::size_t number) {
    const Json& given = record.at("step");
    const double step = given.is_number() ? given.get<double>() : -1;
    if (step < 0 || step != std::floor(step)) {
      refuse(number, concat("'step' is ", given.dump(), ": must be a whole number from 0 on"));
    }
    if (!steps_.empty() && step < steps_.rbegin()->first) {
      notes_.push_back(concat("line ", number, " goes back to step ", given.dump(),
                              ": earlier lines of this and later steps do not count"));
      steps_.erase(steps_.lower_bound(step), steps_.end());
    }
    auto& values = steps_[step];  // lines of the same step, one after the other, are one
    for (const Value& value : kValues) {
      for (const char* name : value.names) {
        if (name == nullptr || !record.contains(name)) continue;
        values[name] = {number_of(value, name, record.at(name), number), number};
      }
    }
  }

  double number_of(const Value& value, const char* name, const Json& json, std::size_t line) const {
    const auto is = [&](const char* what) {
      refuse(line, concat("'", name, "' is ", json.dump(), ": must be ", what));
    };
    if (json.is_null() && !value.grows) return NAN;
    if (!json.is_number()) is("a number");
    const auto number = json.get<double>();
    if (value.grows && number < 0) is("0 or more");
    if (value.highest == 1 && (number < 0 || number > 1)) is("a share, from 0 to 1");
    return number;
  }

  // The name of the value in this file, or null. Notes other names that the file has, too.
  template <typename Has>
  const char* chosen(const Names& names, const Has& has) {
    const char* first = nullptr;
    for (const char* name : names) {
      if (name == nullptr || !has(name)) continue;
      if (first == nullptr) {
        first = name;
      } else {
        notes_.push_back(concat("'", name, "' is not shown, but '", first, "'"));
      }
    }
    return first;
  }

  Curve curve_of(const Value& value) {
    const char* const name = chosen(value.names, [&](const char* one) {
      return std::ranges::any_of(steps_, [&](const auto& s) { return s.second.contains(one); });
    });
    Curve curve;
    for (const auto& [step, values] : steps_) {
      const auto at = name != nullptr ? values.find(name) : values.end();
      if (at == values.end()) continue;
      const At& now = at->second;
      const bool falls = !curve.empty() && now.value < curve.back().second;
      // a number of the epoch, which stays for many steps, is not a time
      const bool stays = !curve.empty() && now.value == curve.back().second;
      if (value.grows && (falls || (stays && std::string_view(value.key) == "epoch"))) {
        notes_.push_back(concat("line ", now.line, ": '", name, "' ",
                                falls ? "falls from " : "stays at ",
                                Json(curve.back().second).dump(), falls ? " to " : "",
                                falls ? Json(now.value).dump() : "",
                                ", so it is not used: it must grow from the start of the run"));
        return {};
      }
      curve.emplace_back(step, now.value);
    }
    return curve;
  }

  void add_curves(RunData& run) {
    for (const Value& value : kValues) curves_[value.key] = curve_of(value);
    for (const char* key : {"loss", "lr", "grad_norm"}) run.steps[key] = binned(curves_[key]);
    for (const char* key : {"perplexity", "accuracy"}) run.evaluations[key] = curves_[key];
    run.evaluations["loss"] = curves_["eval_loss"];
    run.n_steps = steps_.size();
    run.sent = curves_["bytes_sent"];
    std::erase_if(run.sent, [](const auto& at) { return at.first == 0; });
    run.bytes_per_step = run.sent.empty() ? NAN : run.sent.back().second / run.sent.back().first;
    run.late_bytes_per_step = run.bytes_per_step;
  }

  // The last evaluation, and the mean training loss of the last tenth of the lines that have it.
  void add_final(RunData& run) {
    const auto check = [&](const char* what, double value) {
      if (std::isfinite(value)) return;
      run.diverged = true;
      run.error = concat("diverged: the last ", what, " is not finite");
    };
    const Curve& losses = curves_.at("loss");
    bool any = !losses.empty();
    for (const auto& [key, curve] : run.evaluations) {
      if (curve.empty()) continue;
      any = true;
      run.final[key] = curve.back().second;
      check(concat(key, " of the evaluations").c_str(), curve.back().second);
    }
    if (!any)
      throw DataError(concat(file_, ": no line has 'step' and a loss, perplexity or accuracy"));
    if (losses.empty()) return;
    check("training loss", losses.back().second);
    double sum = 0;
    const std::size_t n = std::max<std::size_t>(losses.size() / 10, 1);
    for (std::size_t i = losses.size() - n; i < losses.size(); ++i) sum += losses[i].second;
    run.final["train_loss"] = sum / static_cast<double>(n);
  }

  // As the summary.json of `pride train`, without what the file does not say.
  void add_summary(RunData& run) {
    Json facts = Json::object(), settings = Json::object();
    for (const Fact& fact : kFacts) {
      const char* const name =
          chosen(fact.names, [&](const char* one) { return facts_.contains(one); });
      if (name != nullptr) facts[fact.key] = facts_.at(name).first;
    }
    for (const auto& [name, value] : facts_) {
      if (const std::string place = concat(kSettings, "."); name.starts_with(place)) {
        settings[name.substr(place.size())] = value.first;
      }
    }
    for (const char* key : {"method", "steps"}) {
      if (facts.contains(key)) settings[key] = facts.at(key);
    }
    settings["seed"] = facts.value("seed", Json());
    const double last = steps_.rbegin()->first;
    Json model = {{"name", facts.value("model", "model")}};
    if (facts.contains("parameters")) model["parameters"] = facts.at("parameters");
    run.summary = {{"settings", settings},
                   {"task", facts.value("task", "PyTorch")},
                   {"data", {{"hash", facts.value("data", "")}}},
                   {"model", model},
                   {"method", {{"name", facts.value("method", "")}}},
                   {"steps", last},
                   {"steps_run", last},
                   {"seconds", Json::object()}};
    if (facts.contains("workers")) run.summary["world"] = facts.at("workers");
    // mean values of the run, to the last line that has them
    const auto per_step = [&](const char* key) -> std::optional<double> {
      const Curve& curve = curves_.at(key);
      if (curve.empty() || curve.back().first == 0 || curve.back().second == 0) return {};
      return curve.back().second / curve.back().first;
    };
    if (const auto seconds = per_step("seconds")) run.summary["step_ms"] = 1e3 * *seconds;
    if (const auto epochs = per_step("epoch")) run.summary["epochs"] = last * *epochs;
    const double planned = facts.value("steps", last);
    if (last != planned)
      notes_.push_back(concat("it ends at step ", grouped(last), " of ", grouped(planned)));
    if (run.label.empty() && facts.contains("seed")) run.label = facts.value("method", "");
    if (run.label.empty()) run.label = fs::path(file_).stem().string();
  }

  std::string file_;
  std::map<double, std::map<std::string, At>> steps_;          // by step and name
  std::map<std::string, std::pair<Json, std::size_t>> facts_;  // value and its line, by name
  std::map<std::string, Curve> curves_;                        // by key of kValues
  std::string unread_;  // the error of a line that may be the last of a killed run
  std::vector<std::string> notes_;
};

}  // namespace

void load_metrics(const std::string& argument, Loaded& into) {
  std::error_code error;
  const std::size_t cut = fs::exists(argument, error) ? argument.npos : argument.find('=');
  const std::string label = cut == argument.npos ? "" : argument.substr(0, cut);
  const fs::path file = cut == argument.npos ? argument : argument.substr(cut + 1);
  PRIDE_CHECK(cut != 0, "--metrics ", argument, ": there is no name before =");
  check_utf8("--metrics", argument);
  if (!fs::exists(file, error)) {
    throw DataError(concat("--metrics ", file.string(), ": no such file"));
  }
  const fs::path place = fs::canonical(file, error);  // none of a pipe
  const bool is_new = into.places.emplace(error ? file : place, into.runs.size()).second;
  PRIDE_CHECK(is_new, "--metrics ", file.string(), ": it is given twice");
  into.runs.push_back(MetricsFile(file).run(label));
  into.sources.push_back({.name = file.string()});
}

}  // namespace pride::app
