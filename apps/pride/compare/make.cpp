// SPDX-License-Identifier: Apache-2.0
#include "compare/make.h"

#include "compare/child.h"
#include "pride/error.h"

namespace pride::app {
namespace fs = std::filesystem;
namespace {

constexpr int kInterrupted = 130;

}  // namespace

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
