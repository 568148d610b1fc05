// `pride sweep` and `pride compare` as programs, for tests of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "support/run_here.h"
#include "train_names.h"

namespace pride::app {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace test;

// loading libtorch takes longer than the steps of a run: two runs where two are enough
inline constexpr const char* kPair = "[grid]\nmethod = [\"lion\", \"dlion-vote\"]\nseed = 1\n";

class SweepProgram : public testing::Test {
 protected:
  SweepProgram() { folder_.write("text", test::sample_text()); }

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // an experiment of runs of a fraction of a second each
  void write(const std::string& more, int steps = 3) const {
    folder_.write("try.toml", concat("[train]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\n",
                                     "batch = 2\nworkers = 2\nsteps = ", steps, "\n", more));
  }

  std::string command(const std::string& more) const {
    return concat(PRIDE_PROGRAM, " sweep ", path("try.toml").string(), " --data ",
                  path(data_).string(), " --out ", path("out").string(), " ", more);
  }

  Outcome sweep(const std::string& more = "") const { return test::run_shell(command(more)); }

  // In this process; `more`: words between blanks. For sweeps that are refused before their first
  // run.
  Outcome refused(const std::string& more = "") const {
    return test::run_here(words("sweep ", path("try.toml").string(), " --data ",
                                path(data_).string(), " --out ", path("out").string(), " ", more));
  }

  void expect_refusal(const std::string& file, const std::string& part,
                      const std::string& more = "") const {
    write(file);
    const Outcome outcome = refused(more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    expect_contains(outcome.err, part);
    EXPECT_FALSE(fs::exists(path("out"))) << part;
  }

  // The sweep in the background; its messages are in the file `err`.
  pid_t start() const {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c",
            concat("exec ", command("--jobs 1 --quiet"), " >/dev/null 2>", path("err").string())
                .c_str(),
            nullptr);
      _exit(127);
    }
    return child;
  }

  static int wait(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::vector<json> records() const {
    return test::json_lines(bytes_of(path("out") / "sweep.jsonl"));  // none: no file yet
  }

  json overview() const { return json::parse(bytes_of(path("out") / "sweep.json")); }

  std::map<std::string, fs::file_time_type> summaries() const {
    std::map<std::string, fs::file_time_type> times;
    if (!fs::exists(path("out") / "runs")) return times;
    for (const auto& entry : fs::directory_iterator(path("out") / "runs")) {
      const fs::path file = entry.path() / "summary.json";
      if (fs::exists(file)) times[entry.path().filename().string()] = fs::last_write_time(file);
    }
    return times;
  }

  // What a version wrote that knew less, say: every run's summary, changed.
  void change_summaries(void (*change)(json& summary)) const {
    for (const json& record : records()) {
      const fs::path file = path("out") / std::string(record["folder"]) / "summary.json";
      json summary = json::parse(bytes_of(file));
      change(summary);
      folder_.write(file, summary.dump());
    }
  }

  // Half a minute at most.
  template <typename Test>
  static void wait_until(const Test& is_so) {
    for (int i = 0; i < 3000 && !is_so(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(is_so());
  }

  test::TempFolder folder_;
  std::string data_ = "text";
};

}  // namespace pride::app
