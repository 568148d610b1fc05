// SPDX-License-Identifier: Apache-2.0
#include "experiments/result.h"

#include <cstring>
#include <fstream>

#include "experiments/process.h"
#include "pride/error.h"
#include "train/text/utf8.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr int kInterrupted = 130;
constexpr const char* kErrorMark = "pride: error: ";
constexpr const char* kKilledBySignal = "killed by signal ";

// The run's folder, all of it. Throws DataError if the files cannot be read, or lack steps.
RunData read_whole(const Run& run) {
  RunData data{.folder = run.folder.string()};
  read_run(data);
  if (data.summary.is_null()) throw DataError(data.error);
  const std::size_t n = data.summary.at("steps");
  if (data.cut_short || data.n_steps != n) {
    throw DataError(concat((run.folder / "metrics.jsonl").string(), ": ", data.n_steps,
                           " steps, summary.json has ", n, data.cut_short ? "; cut short" : ""));
  }
  return data;
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

std::optional<RunData> made_before(const Run& run, std::string& unusable) {
  if (!fs::exists(run.folder / "summary.json")) return std::nullopt;
  try {
    RunData data = read_whole(run);
    if (!data.interrupted() && same_run(data.summary, run)) return data;
  } catch (const DataError& error) {
    unusable = error.what();
  }
  return std::nullopt;
}

std::optional<RunData> make_run(const Run& run, bool (*stop_asked)() noexcept) {
  std::error_code error;
  fs::create_directories(run.folder, error);
  if (error) throw DataError(concat(run.folder.string(), ": ", error.message()));
  // should the run fail, no summary may be left that is not its own
  fs::remove_all(run.folder / "summary.json");
  std::vector<std::string> arguments = {"train"};
  arguments.insert(arguments.end(), run.arguments.begin(), run.arguments.end());
  arguments.insert(arguments.end(), {concat("--out=", run.folder.string()), "--overwrite"});
  const int code = run_child(arguments, run.folder / "log", stop_asked);
  if (code == 0) return read_whole(run);  // even if it was asked to stop: it was faster
  if (stop_asked() || code == kInterrupted) return std::nullopt;
  RunData failed{.folder = run.folder.string(), .error = last_error(run.folder / "log")};
  if (code > 128) {
    failed.error = concat(kKilledBySignal, code - 128);
  } else if (failed.error.empty()) {
    failed.error = concat("exit code ", code);
  }
  return failed;
}

bool was_killed(const RunData& result) {
  return result.error == kStoppedBySignal || result.error.starts_with(kKilledBySignal);
}

}  // namespace pride::app
