// SPDX-License-Identifier: Apache-2.0
#include "report/run_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <string_view>
#include <system_error>

#include "pride/error.h"
#include "program/files.h"
#include "train/run_folder.h"
#include "train_names.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

double mean_of_last(const std::vector<double>& values, std::size_t n) {
  return std::accumulate(values.end() - static_cast<std::ptrdiff_t>(n), values.end(), 0.0) /
         static_cast<double>(n);
}

// The number of late steps: the last tenth. With local steps all, because most steps send nothing
// and no such method begins with dense steps.
std::size_t late_steps(const RunData& run) {
  const Json h = run.summary.value(Json::json_pointer("/method/options/h"), Json("1"));
  return h == "1" ? std::max<std::size_t>(run.n_steps / 10, 1) : run.n_steps;
}

// Drops the last line if it is incomplete, as after a kill.
void read_metrics(const fs::path& file, RunData& run) {
  std::ifstream in(file);
  if (!in) throw DataError(concat(file.string(), ": cannot read"));
  std::map<std::string, Curve> steps;
  std::vector<double> bytes;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) {
      run.cut_short = in.peek() == EOF;
      if (run.cut_short) break;
      throw DataError(concat(file.string(), ":", number, ": not a JSON object"));
    }
    const std::string type = record.value("type", "");
    if (type == "step") {
      const double step = record.at("step");
      for (const char* key : {"loss", "lr", "grad_norm"}) {
        const auto value = record.find(key);
        if (value == record.end()) continue;
        steps[key].emplace_back(step, value->is_number() ? value->get<double>() : NAN);
      }
      bytes.push_back(record.at("bytes_sent"));
    } else if (type == "eval") {
      const double step = record.at("step");
      for (const auto& [name, value] : record.items()) {
        const bool metric = name != "step" && name != "seconds" && value.is_number();
        if (metric) run.evaluations[name].emplace_back(step, value.get<double>());
      }
    }
  }
  const Curve& losses = steps["loss"];
  run.n_steps = bytes.size();
  if (bytes.empty()) throw DataError(concat(file.string(), ": no steps"));
  if (losses.size() != run.n_steps) throw DataError("a step has no loss");
  run.first_loss = std::isfinite(losses.front().second) ? losses.front().second : 0;
  run.bytes_per_step = mean_of_last(bytes, run.n_steps);
  run.late_bytes_per_step = mean_of_last(bytes, late_steps(run));
  const std::size_t stretch = (run.n_steps + kBins - 1) / kBins;
  double sum = 0;
  for (std::size_t i = 0; i < run.n_steps; ++i) {
    sum += bytes[i];
    if (i == 0 || (i + 1) % stretch == 0) run.sent.emplace_back(losses[i].first, sum);
  }
  for (auto& [key, curve] : steps) run.steps[key] = binned(curve);
}

// Checks the types of values: "settings.seed" is the key `seed` in the object `settings`. `type`: a
// result of type_name().
void check(const Json& summary, std::initializer_list<const char*> paths, const std::string& type,
           bool may_be_absent = false) {
  for (const std::string path : paths) {
    std::string place = "/" + path;
    std::ranges::replace(place, '.', '/');
    const Json::json_pointer at(place);
    if (!summary.contains(at)) {
      if (may_be_absent) continue;
      throw DataError(concat("'", path, "' is missing"));
    }
    if (summary.at(at).type_name() == type) continue;
    throw DataError(concat("'", path, "' is not ", type == "object" ? "an " : "a ", type));
  }
}

void check_summary(const Json& summary) {
  if (!summary.is_object()) throw DataError("not a JSON object");
  check(summary, {"settings", "method", "model", "data", "seconds", "bytes", "final"}, "object");
  check(summary,
        {"epochs", "steps", "world", "step_ms", "steps_run", "settings.seed", "model.parameters"},
        "number");
  check(summary, {"task", "data.hash", "method.name"}, "string");
  const bool may_be_absent = true;
  check(summary, {"versions", "model.size"}, "object", may_be_absent);
  check(summary,
        {"param_hash", "model.name", "data.source", "versions.commit", "model.size.init_hash"},
        "string", may_be_absent);
  check(summary, {"interrupted"}, "boolean", may_be_absent);
  for (const auto& [name, value] : summary.at("seconds").items()) {
    check(summary, {("seconds." + name).c_str()}, "number");
  }
}

void read_summary(RunData& run) {
  const Json& summary = run.summary;
  check_summary(summary);
  if (run.label.empty()) run.label = summary.at("method").at("name");
  run.error = read_final_metrics(summary.at("final"), run.final);
  run.diverged = !run.error.empty();
  if (summary.value("interrupted", false)) {
    run.error = "interrupted before its end";
  } else if (run.ok() && !run.final.contains("loss")) {
    throw DataError("'final.loss' is missing");
  }
}

// Runs body(). Its errors become DataErrors that name the file.
template <typename Body>
void reading(const fs::path& file, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const bool named = std::string_view(error.what()).starts_with(file.string());
    throw DataError(named ? error.what()
                          : concat(file.string(), ": not what pride writes: ", error.what()));
  }
}

fs::path real_place(const fs::path& folder) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(folder.empty() ? "." : folder, error);
  return error ? folder.lexically_normal() : found;
}

// Adds the run, unless its folder was loaded. A sweep's entry, with a command, replaces others.
void add_run(RunData run, Loaded& into) {
  const auto [at, is_new] = into.places.emplace(real_place(run.folder), into.runs.size());
  if (is_new) return into.runs.push_back(std::move(run));
  RunData& known = into.runs[at->second];
  if (!known.command.empty() || run.command.empty()) return;
  std::erase_if(into.sources, [&](const Source& s) { return s.name == known.source; });
  known = std::move(run);
}

void load_sweep(const fs::path& folder, Loaded& into) {
  Source source{.name = folder.string()};
  reading(folder / "sweep.json", [&] {
    const Json overview = read_json(folder / "sweep.json");
    source.title = overview.value("title", "");
    source.note = overview.value("note", "");
    source.file = overview.value("file", "");
    source.complete = overview.value("complete", true);
    source.missing = overview.value("missing", 0);
  });
  std::ifstream in(folder / "sweep.jsonl");
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    RunData run{.source = source.name};
    try {
      const Json record = Json::parse(line);
      run.label = record.at("label");
      run.tuning = record.at("phase") == "tune";
      run.error = record.value("error", "");
      run.command = record.value("command", "");
      run.folder = (folder / record.at("folder").get<std::string>()).string();
    } catch (const Json::exception& error) {
      throw DataError(concat(
          (folder / "sweep.jsonl").string(), ":", number,
          ": not a line of `pride sweep` (run it again to rewrite the file): ", error.what()));
    }
    read_run(run);
    add_run(std::move(run), into);
  }
  into.sources.push_back(std::move(source));
}

void load_one(const fs::path& folder, Loaded& into) {
  Source source{.name = folder.string()};
  RunData run{.source = source.name, .folder = source.name};
  read_run(run);
  if (run.label.empty()) run.label = real_place(folder).filename().string();
  const std::size_t n = into.runs.size();
  add_run(std::move(run), into);
  if (into.runs.size() > n) into.sources.push_back(std::move(source));
}

// The subfolders with runs.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto has = [&](const char* file) { return fs::exists(entry.path() / file); };
    if (has("sweep.json") || has("summary.json") || has("metrics.jsonl")) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

Curve binned(const Curve& curve) {
  const std::size_t width = (curve.size() + kBins - 1) / kBins;
  if (width <= 1) return curve;
  Curve bins;
  for (std::size_t begin = 0; begin < curve.size(); begin += width) {
    const std::size_t end = std::min(begin + width, curve.size());
    double step = 0, value = 0;
    for (std::size_t i = begin; i < end; ++i) {
      step += curve[i].first;
      value += curve[i].second;
    }
    const auto n = static_cast<double>(end - begin);
    bins.emplace_back(step / n, value / n);
  }
  return bins;
}

void read_run(RunData& run) {
  const std::string known = run.error;
  const fs::path folder = run.folder, summary = folder / "summary.json",
                 metrics = folder / "metrics.jsonl";
  try {
    if (!fs::exists(summary)) throw DataError("not finished: no summary.json");
    reading(summary, [&] {
      run.summary = read_json(summary);
      read_summary(run);
    });
    reading(metrics, [&] { read_metrics(metrics, run); });
  } catch (const std::exception& error) {
    run.error = error.what();
    run.summary = nullptr;
  }
  if (!known.empty()) run.error = known;
}

double RunData::steps_per_epoch() const {
  const double steps = summary.at("steps");
  return epochs() <= 0 ? 1 : steps / epochs();
}

double RunData::compute_ms() const {
  const Json& seconds = summary.at("seconds");
  double sum = 0;
  for (const char* stage : {"data_s", "backward_s", "encode_s", "apply_s"}) {
    sum += seconds.value(stage, 0.0);
  }
  return 1e3 * sum / summary.at("steps_run").get<double>();
}

double RunData::sent_until(double step) const {
  std::pair<double, double> before = {0, 0};
  for (const auto& at : sent) {
    if (at.first >= step) {
      const double share = (step - before.first) / (at.first - before.first);
      return before.second + share * (at.second - before.second);
    }
    before = at;
  }
  return before.second + (step - before.first) * late_bytes_per_step;
}

void load_runs(const fs::path& given, Loaded& into) {
  fs::path folder = fs::is_directory(given) ? given : given.parent_path();
  if (folder.empty()) folder = ".";  // if `given` is "summary.json"
  if (!fs::exists(given)) throw DataError(concat(given.string(), ": no such folder"));
  constexpr std::array kFiles = {"sweep.json", "sweep.jsonl", "summary.json", "metrics.jsonl"};
  if (!fs::is_directory(given) && std::ranges::count(kFiles, given.filename()) == 0) {
    throw DataError(concat(given.string(),
                           ": no folder, and no file that a run's folder has; a "
                           "file of a PyTorch program needs --metrics"));
  }
  const bool known = std::ranges::any_of(
      into.sources, [&](const Source& s) { return real_place(s.name) == real_place(folder); });
  if (known) return;
  if (fs::exists(folder / "sweep.json")) return load_sweep(folder, into);
  if (fs::exists(folder / "summary.json") || fs::exists(folder / "metrics.jsonl")) {
    return load_one(folder, into);
  }
  const std::vector<fs::path> inside = folders_in(folder);
  for (const fs::path& one : inside) load_runs(one, into);
  if (inside.empty()) {
    throw DataError(concat(given.string(),
                           ": neither sweep.json, summary.json nor metrics.jsonl in "
                           "it, nor in a folder in it"));
  }
}

}  // namespace pride::app
