// `pride train` as a program, for tests of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "support/run_here.h"
#include "train_names.h"

namespace pride::app {

using nlohmann::json;
using namespace test;
using Arguments = std::vector<std::string>;

constexpr const char* kMethods[] = {"adamw", "lion", "dlion-vote", "dlion-avg"};

inline std::string command_line(const Arguments& arguments) {
  return test::command_of(plus({"train"}, arguments));
}

inline Outcome train(const Arguments& arguments) { return run_shell(command_line(arguments)); }

class Train : public testing::Test {
 protected:
  Train() { folder_.write("text", test::sample_text()); }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  std::filesystem::path checkpoint(const std::string& out, int step) const {
    return folder_.path() / out / "checkpoints" / concat("step-", step);
  }

  // a run of a second or so; later flags override earlier ones nowhere, so keep them apart
  Arguments tiny(Arguments more) const {
    return plus(words("--data ", path("text"),
                      " --layers 1 --heads 2 --width 32 --context 16 --batch 4 --quiet"),
                more);
  }

  json summary(const Arguments& more) const {
    return json_of(test::run_here(plus({"train"}, tiny(plus(more, {"--json"})))));
  }

  // Code 2 for wrong usage, 1 for a failure.
  void expect_error(const Arguments& more, const std::string& part, int code = 2) const {
    const Outcome outcome = test::run_here(plus({"train"}, tiny(more)));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    expect_contains(outcome.err, part);
  }

  // Runs the command in the background, `then` once there are metrics in `out`, and waits for it.
  Outcome run_and(const std::string& command, const std::string& out,
                  const std::string& then) const {
    return run_shell(concat("(", command, " & pid=$!; for i in $(seq 300); do [ -s ", path(out),
                            "/metrics.jsonl ] && break; sleep 0.1; done; ", then, "; wait $pid)"));
  }

  std::vector<json> metrics(const std::string& out) const {
    return test::json_lines(bytes_of(path(out) + "/metrics.jsonl"));
  }

  TempFolder folder_;
};

}  // namespace pride::app
