// SPDX-License-Identifier: Apache-2.0
#include "experiments/result.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "experiments/child.h"
#include "pride/error.h"
#include "train/files.h"
#include "train/final_metrics.h"
#include "train/text/utf8.h"
#include "train_names.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr int kInterrupted = 130;
constexpr const char* kErrorMark = "pride: error: ";
constexpr const char* kKilledBySignal = "killed by signal ";

// of a summary, what the report will ask for
constexpr const char* kFacts[] = {"task", "data", "steps_planned"};
constexpr const char* kRunFacts[] = {"param_hash", "steps", "steps_skipped",
                                     "method",     "isa",   "versions"};

struct Steps {
  double first_loss = 0;
  std::vector<double> bytes;
};

// What JSON has against a file, with the file's name.
template <typename Body>
auto reading(const fs::path& file, const Body& body) {
  try {
    return body();
  } catch (const nlohmann::json::exception& error) {
    throw DataError(concat(file.string(), ": not what `pride train` writes: ", error.what()));
  }
}

Steps read_steps(const fs::path& file) {
  Steps steps;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) throw DataError(concat(file.string(), ": a line is cut short"));
    if (record.value("type", "") != "step") continue;
    const auto& loss = record.at("loss");
    if (steps.bytes.empty() && loss.is_number()) steps.first_loss = loss;
    steps.bytes.push_back(record.at("bytes_sent"));
  }
  if (steps.bytes.empty()) throw DataError(concat(file.string(), ": no steps"));
  return steps;
}

double mean_of_last(const std::vector<double>& values, std::size_t n) {
  double sum = 0;
  for (std::size_t i = values.size() - n; i < values.size(); ++i) sum += values[i];
  return sum / static_cast<double>(n);
}

// Fills in what the summary says; returns the number of steps.
std::size_t read_summary(RunResult& result) {
  const nlohmann::json& summary = result.summary;
  for (const char* key : kFacts) summary.at(key);
  for (const char* key : kRunFacts) summary.at(key);
  result.error = read_final_metrics(summary.at("final"), result.final);
  // throws if it is not there, or no number; a run that was interrupted may have none yet
  if (result.ok() && !summary.at("interrupted").get<bool>()) {
    summary.at("final").at("loss").get<double>();
  }
  result.step_ms = summary.at("step_ms");
  result.world = summary.at("world");
  result.parameters = summary.at("model").at("parameters");
  return summary.at("steps");
}

// the program's own words, if it had any
std::string last_error(const fs::path& log) {
  std::ifstream in(log);
  std::string found, last;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(kErrorMark, 0) == 0) found = line.substr(std::strlen(kErrorMark));
    if (!line.empty()) last = line;
  }
  return as_utf8(found.empty() ? last : found);  // it may name files of any name
}

}  // namespace

std::optional<RunResult> made_before(const Run& run, std::string& unusable) {
  const fs::path file = run.folder / "summary.json";
  if (!fs::exists(file)) return std::nullopt;
  try {
    RunResult result = read_result(run);
    const bool wanted = reading(file, [&] {
      return !result.summary.at("interrupted").get<bool>() && same_run(result.summary, run);
    });
    if (wanted) return result;
  } catch (const DataError& error) {
    unusable = error.what();
  }
  return std::nullopt;
}

RunResult read_result(const Run& run) {
  RunResult result{.run = run};
  const fs::path file = run.folder / "summary.json", metrics = run.folder / "metrics.jsonl";
  result.summary = read_json(file);
  const auto n_steps = reading(file, [&] { return read_summary(result); });
  const Steps steps = reading(metrics, [&] { return read_steps(metrics); });
  if (steps.bytes.size() != n_steps) {
    throw DataError(
        concat(metrics.string(), ": ", steps.bytes.size(), " steps, summary.json has ", n_steps));
  }
  result.first_loss = steps.first_loss;
  result.bytes = mean_of_last(steps.bytes, steps.bytes.size());
  result.late_bytes = mean_of_last(steps.bytes, std::max<std::size_t>(steps.bytes.size() / 10, 1));
  return result;
}

RunResult failed_result(const Run& run, int code) {
  RunResult result{.run = run};
  result.error = last_error(run.folder / "log");
  if (result.error.empty() || code > 128) {
    result.error =
        concat(code > 128 ? kKilledBySignal : "exit code ", code > 128 ? code - 128 : code);
  }
  return result;
}

bool was_killed(const RunResult& result) {
  return result.error == kStoppedBySignal || result.error.starts_with(kKilledBySignal);
}

nlohmann::ordered_json to_json(const RunResult& result) {
  nlohmann::ordered_json json = {{"seed", result.run.seed},
                                 {"lr", result.run.rate},
                                 {"folder", result.run.folder.string()},
                                 {"arguments", result.run.arguments}};
  if (!result.ok()) json["error"] = result.error;
  if (result.summary.is_null()) return json;
  json["first_loss"] = result.first_loss;
  json["final"] = result.final;
  json["bytes_per_step"] = result.bytes;
  json["late_bytes_per_step"] = result.late_bytes;
  json["step_ms"] = result.step_ms;
  for (const char* key : kRunFacts) json[key] = result.summary.at(key);
  return json;
}

std::optional<RunResult> make_run(const Run& run, bool (*stop_asked)() noexcept) {
  std::error_code error;
  fs::create_directories(run.folder, error);
  if (error) throw DataError(concat(run.folder.string(), ": ", error.message()));
  // should the run fail, no summary may be left that is not its own
  fs::remove_all(run.folder / "summary.json");
  std::vector<std::string> arguments = {"train"};
  arguments.insert(arguments.end(), run.arguments.begin(), run.arguments.end());
  arguments.insert(arguments.end(), {concat("--out=", run.folder.string()), "--overwrite"});
  const int code = run_child(arguments, run.folder / "log", stop_asked);
  if (code == 0) return read_result(run);  // even if it was asked to stop: it was faster
  if (stop_asked() || code == kInterrupted) return std::nullopt;
  return failed_result(run, code);
}

}  // namespace pride::app
