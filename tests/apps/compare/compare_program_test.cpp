// `pride compare` from the command line: its runs, repetitions, refusals and failures.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/io/run_program.h"
#include "pride/error.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::bytes_of;
using test::expect_contains;
using test::Outcome;
using test::TempFolder;
using Arguments = std::vector<std::string>;

class Compare : public testing::Test {
 protected:
  Compare() { write_text("fox"); }

  void write_text(const std::string& animal) const {
    folder_.write("text", test::sample_text(animal));
  }

  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // runs of a fraction of a second each
  std::string command_line(const Arguments& more) const {
    Arguments all = {
        "--data", path(data_).string(), "--layers", "1",       "--heads", "2",         "--width",
        "16",     "--context",          "16",       "--batch", "2",       "--workers", "2",
        "--out",  path("out").string()};
    all.insert(all.end(), more.begin(), more.end());
    std::string command = concat(PRIDE_PROGRAM, " compare");
    for (const std::string& argument : all) command += " '" + argument + "'";
    return command;
  }

  Outcome compare(const Arguments& more) const { return test::run_shell(command_line(more)); }

  json result() const { return json::parse(bytes_of(path("out") / "compare.json")); }

  void expect_refusal(const Arguments& more, const std::string& part, int code = 1) const {
    const Outcome outcome = compare(more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    expect_contains(outcome.err, part);
    EXPECT_EQ(outcome.out, "");
  }

  TempFolder folder_;
  std::string data_ = "text";
};

const Arguments kTwo = {"--methods", "lion,dlion-vote", "--seeds", "1", "--steps", "3"};
const Arguments kFour = {"--methods", "lion,dlion-vote", "--seeds", "1,2", "--steps", "3"};

Arguments with(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST_F(Compare, TrainsEveryMethodOnEverySeed) {
  const Outcome outcome = compare(with(kFour, {"--lr", "1e-3"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "| method");
  expect_contains(outcome.out, "| `dlion-vote` | 1e-3 |");
  expect_contains(outcome.err, "[4/4] dlion-vote, lr 1e-3, seed 2: loss ");
  const json all = result();
  EXPECT_TRUE(all["complete"]);
  EXPECT_EQ(all["runs_failed"], 0);
  ASSERT_EQ(all["methods"].size(), 2U);
  for (const json& method : all["methods"]) {
    ASSERT_EQ(method["runs"].size(), 2U);
    double loss = 0;
    for (const json& run : method["runs"]) {
      loss += run["final"]["loss"].get<double>() / 2;
      const fs::path folder = run["folder"].get<std::string>();
      const json summary = json::parse(bytes_of(folder / "summary.json"));
      EXPECT_EQ(run["param_hash"], summary["param_hash"]);
      EXPECT_EQ(run["seed"], summary["settings"]["seed"]);
      EXPECT_EQ(run["bytes_per_step"], summary["bytes"]["ranks"][0]["sent_per_step"]);
    }
    EXPECT_DOUBLE_EQ(method["results"]["final"]["loss"]["mean"].get<double>(), loss);
  }
  const json& lion = all["methods"][0]["runs"];
  EXPECT_NE(lion[0]["first_loss"], lion[1]["first_loss"]) << "another seed, another start";
  const double dense = all["methods"][0]["results"]["ratio_to_fp32_ring"];
  const double vote = all["methods"][1]["results"]["ratio_to_fp32_ring"];
  EXPECT_NEAR(dense, 1, 0.1) << "frames of so small a model";
  EXPECT_LT(vote, 1.0 / 10);
}

TEST_F(Compare, GivesAllMethodsTheSameStartAndBatches) {
  ASSERT_EQ(compare({"--methods", "all", "--seeds", "1", "--steps", "2"}).code, 0);
  const json all = result();
  EXPECT_EQ(all["unequal_starts"], json::array());
  // the loss of step 1 is that of the initial values on the first batches
  for (const json& method : all["methods"]) {
    EXPECT_EQ(method["runs"][0]["first_loss"], all["methods"][0]["runs"][0]["first_loss"])
        << method["label"];
  }
}

// With a rate of 0 the parameters stay the initial ones, which depend on nothing but the seed.
TEST_F(Compare, GivesAllMethodsTheSameInitialValues) {
  const Outcome outcome = compare({"--methods", "adamw,lion,dlion-vote,dlion-avg", "--seeds", "5",
                                   "--steps", "2", "--lr", "0", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = json::parse(outcome.out);
  for (const json& method : all["methods"]) {
    EXPECT_EQ(method["runs"][0]["param_hash"], all["methods"][0]["runs"][0]["param_hash"]);
    EXPECT_EQ(method["runs"][0]["final"]["loss"], all["methods"][0]["runs"][0]["final"]["loss"]);
  }
}

TEST_F(Compare, RepeatsNoCompleteRunAndMakesWhatIsMissing) {
  ASSERT_EQ(compare(kFour).code, 0);
  const json before = result();
  const fs::path kept = path("out") / "lion" / "1e-4-seed1" / "metrics.jsonl";
  const auto time = fs::last_write_time(kept);
  // as a run that was stopped leaves its folder: records, but no summary
  const fs::path lost = path("out") / "dlion-vote" / "1e-4-seed2";
  fs::remove(lost / "summary.json");
  const Outcome rest = compare(kFour);
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(fs::last_write_time(kept), time);
  EXPECT_TRUE(fs::exists(lost / "summary.json"));
  expect_contains(rest.err, "seed 1: loss ");
  expect_contains(rest.err, "made before");
  EXPECT_EQ(result()["methods"][1]["runs"][1]["param_hash"],
            before["methods"][1]["runs"][1]["param_hash"]);
}

TEST_F(Compare, RefusesAFolderOfOtherSettingsUnlessTold) {
  ASSERT_EQ(compare(kTwo).code, 0);
  Arguments other = {"--methods", "lion,dlion-vote", "--seeds", "1,2", "--steps", "4"};
  expect_refusal(other, "summary.json: an earlier run had --steps 3 instead of 4");
  EXPECT_EQ(compare(with(kTwo, {"--eval-every", "1", "--overlap", "--log-every", "1"})).code, 0)
      << "what changes no result is no other setting";
  expect_refusal(with(kTwo, {"--bucket-coords", "64"}), "had --bucket-coords null instead of 64");
  other.push_back("--overwrite");
  EXPECT_EQ(compare(other).code, 0);
  EXPECT_EQ(result()["methods"][0]["runs"][1]["steps"], 4);
}

TEST_F(Compare, KnowsItsRunsWhenTheDataHaveMoved) {
  ASSERT_EQ(compare(kTwo).code, 0);
  const fs::path kept = path("out") / "lion" / "1e-4-seed1" / "metrics.jsonl";
  const auto time = fs::last_write_time(kept);
  fs::rename(path("text"), path("moved"));
  data_ = "moved";
  const Outcome again = compare(kTwo);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(fs::last_write_time(kept), time) << "the same data, the same run";
}

TEST_F(Compare, RefusesTheFolderOfASweep) {
  folder_.write("out/sweep.json", "{}");
  expect_refusal({"--methods", "lion", "--steps", "1"}, "holds the runs of a sweep");
}

TEST_F(Compare, RefusesAFolderOfOtherDataUnlessTold) {
  ASSERT_EQ(compare(kTwo).code, 0);
  const json before = result();
  write_text("cat");
  Arguments more = {"--methods", "lion,dlion-vote", "--seeds", "1,2", "--steps", "3"};
  expect_refusal(
      more, concat("had data of hash ", before["data"]["hash"].get<std::string>(), " instead of "));
  expect_refusal({"--methods", "adamw", "--seeds", "7", "--steps", "3"},
                 "compare.json: an earlier comparison had data of hash ");
  more.push_back("--overwrite");
  ASSERT_EQ(compare(more).code, 0);
  const json after = result();
  EXPECT_NE(after["data"]["hash"], before["data"]["hash"]);
  EXPECT_EQ(after["unequal_starts"], json::array()) << "all runs were made anew";
}

// Damaged or foreign contents of the folder.
TEST_F(Compare, MakesRunsWithUnreadableFilesAnew) {
  ASSERT_EQ(compare(kFour).code, 0);
  const json before = result();
  const fs::path one = "out/lion/1e-4-seed1", two = "out/lion/1e-4-seed2",
                 three = "out/dlion-vote/1e-4-seed1";
  const auto expect_again = [&](const fs::path& spoilt) {
    const Outcome again = compare(kFour);
    ASSERT_EQ(again.code, 0) << again.err;
    expect_contains(again.err, "pride: warning: " + path(spoilt.string()).string());
    for (int method = 0; method < 2; ++method) {
      EXPECT_EQ(result()["methods"][method]["results"]["bytes_per_step"],
                before["methods"][method]["results"]["bytes_per_step"]);
    }
  };
  for (const char* text : {"{}", "[]", "", "{\"settings\": "}) {
    folder_.write(one / "summary.json", text);
    expect_again(one / "summary.json");
  }
  const std::string steps = bytes_of(path("out/lion/1e-4-seed2/metrics.jsonl"));
  for (const std::size_t n : {std::size_t{0}, steps.find('\n') + 1, steps.size() - 10}) {
    folder_.write(two / "metrics.jsonl", steps.substr(0, n));
    expect_again(two / "metrics.jsonl");
  }
  std::string summary = bytes_of(path("out/lion/1e-4-seed1/summary.json"));
  const std::size_t loss = summary.find("\"loss\": ", summary.find("\"final\""));
  folder_.write(one / "summary.json", summary.insert(loss + 8, "\"abc\", \"had\": "));
  expect_again(one / "summary.json");
  fs::remove(path(three.string()) / "metrics.jsonl");
  folder_.write("out/lion/notes/summary.json", "{}");  // no run of this comparison
  expect_again(three / "metrics.jsonl");
}

TEST_F(Compare, GoesOnWhenAMethodFails) {
  const Outcome outcome = compare(with(kTwo, {"--set", "lion:lr=1e30"}));
  EXPECT_EQ(outcome.code, 1);
  expect_contains(outcome.out, "| `lion` (0 of 1 runs) | 1e30 |");
  expect_contains(outcome.out, "failed: lion, lr 1e30, seed 1: ");
  expect_contains(outcome.out, "NaN or Inf in the gradient of");
  expect_contains(outcome.out, "| `dlion-vote`");
  expect_contains(outcome.err, "pride: error: 1 run failed");
  const json all = result();
  EXPECT_EQ(all["runs_failed"], 1);
  EXPECT_TRUE(all["methods"][0]["results"].is_null());
  EXPECT_FALSE(all["methods"][0]["runs"][0]["error"].get<std::string>().empty());
  EXPECT_TRUE(all["methods"][1]["results"].is_object());
}

TEST_F(Compare, SetsFlagsForOneMethodOnly) {
  const Outcome outcome =
      compare({"--methods", "vote=dlion-vote,zero=dlion-vote", "--seeds", "1", "--steps", "2",
               "--weight-decay", "0.5", "--set", "zero:method-opt=tie=zero", "--set",
               "zero:weight-decay=0.25", "--set", "zero:decay-all=true"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = result();
  EXPECT_EQ(all["methods"][1]["set"]["method-opt"], json({"tie=zero"}));
  const auto settings = [&](const std::string& label) {
    return json::parse(bytes_of(path("out") / label / "1e-4-seed1" / "summary.json"))["settings"];
  };
  EXPECT_EQ(settings("vote")["method-opt"], json::array());
  EXPECT_EQ(settings("vote")["weight-decay"], 0.5);
  EXPECT_EQ(settings("zero")["method-opt"], json({"tie=zero"}));
  EXPECT_EQ(settings("zero")["weight-decay"], 0.25);
  EXPECT_EQ(settings("zero")["decay-all"], true);
}

TEST_F(Compare, AddsMethodOptionsOfItsOwnToTheSharedOnes) {
  ASSERT_EQ(compare({"--methods", "a=dgc,b=dgc,c=dgc", "--seeds", "1", "--steps", "2",
                     "--method-opt", "ratio=0.01", "--method-opt", "masking=no", "--set",
                     "b:method-opt=ratio=0.1", "--set", "c:method-opt=warmup_steps=1"})
                .code,
            0);
  const json methods = result()["methods"];
  const auto options = [&](int i) {
    const fs::path folder = methods[i]["runs"][0]["folder"].get<std::string>();
    return json::parse(bytes_of(folder / "summary.json"))["settings"]["method-opt"];
  };
  EXPECT_EQ(options(0), json({"ratio=0.01", "masking=no"}));
  EXPECT_EQ(options(1), json({"masking=no", "ratio=0.1"})) << "its own wins";
  EXPECT_EQ(options(2), json({"ratio=0.01", "masking=no", "warmup_steps=1"}));
}

TEST_F(Compare, TunesTheRateOnASeedThatIsNotShown) {
  const Outcome outcome =
      compare({"--methods", "lion,adamw", "--seeds", "1", "--steps", "20", "--lr", "0.02", "--tune",
               "--tune-seed", "7", "--tune-steps", "10"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "Loss on seed 7 at each rate tried:");
  for (const json& method : result()["methods"]) {
    double best = 0, lowest = INFINITY, smallest = INFINITY, largest = 0;
    for (const json& trial : method["tried"]) {
      EXPECT_EQ(trial["seed"], 7);
      EXPECT_EQ(trial["steps"], 10);
      const double rate = trial["lr"];
      smallest = std::min(smallest, rate);
      largest = std::max(largest, rate);
      if (trial["loss"].is_null() || trial["loss"] >= lowest) continue;
      lowest = trial["loss"];
      best = rate;
    }
    EXPECT_EQ(method["lr"], best) << method["label"];
    EXPECT_EQ(method["tried"][0]["lr"], 0.03) << "next to the rate that was given";
    EXPECT_LT(smallest, best) << "the best is interior";
    EXPECT_GT(largest, best);
    EXPECT_EQ(method["runs"][0]["lr"], best);
    EXPECT_EQ(method["runs"][0]["steps"], 20);
  }
}

// onebit-adam begins with dense steps: by default, a fifth of the run.
TEST_F(Compare, CountsADenseBeginning) {
  const Outcome outcome =
      compare({"--methods", "adamw,onebit-adam", "--seeds", "1", "--steps", "20"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json all = result();
  EXPECT_EQ(all["methods"][1]["runs"][0]["method"]["options"]["freeze_steps"], "4");
  const double dense = all["methods"][0]["results"]["bytes_per_step"];
  const double mean = all["methods"][1]["results"]["bytes_per_step"];
  const double late = all["methods"][1]["results"]["late_bytes_per_step"];
  EXPECT_LT(late, dense / 10);
  EXPECT_NEAR(mean, 0.2 * dense + 0.8 * late, 0.05 * dense);
  expect_contains(outcome.out, " (late 1/");
}

TEST_F(Compare, SaysWhyNoRateWorked) {
  const Outcome failed =
      compare({"--methods", "lion", "--seeds", "1", "--steps", "2", "--tune", "--lr", "1e30"});
  EXPECT_EQ(failed.code, 1);
  expect_contains(failed.out,
                  "not run, no rate that was tried gave a result; the last: step 2: NaN or Inf");
  EXPECT_EQ(result()["methods"][0]["tried"].size(), 5U);
}

TEST_F(Compare, ReadsItsFlagsFromAFile) {
  const auto file = folder_.write(
      "run.toml", "methods = [\"lion\"]\nseeds = [4]\nsteps = 2\nset = [\"lion:lr=0.5\"]\n");
  ASSERT_EQ(compare({"--config", file.string()}).code, 0);
  EXPECT_EQ(result()["methods"][0]["runs"][0]["seed"], 4);
  EXPECT_EQ(result()["methods"][0]["lr"], 0.5);
  EXPECT_EQ(result()["methods"][0]["runs"][0]["steps"], 2);
}

TEST_F(Compare, StopsOnAnInterruptAndGoesOnLater) {
  const Arguments all = {"--methods", "lion", "--seeds", "1,2", "--steps", "400"};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string command =
        concat("exec ", command_line(all), " >/dev/null 2>", path("err").string());
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const fs::path metrics = path("out") / "lion" / "1e-4-seed1" / "metrics.jsonl";
  while (bytes_of(metrics).size() < 1000 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 130);
  expect_contains(bytes_of(path("err")), "pride: interrupted; ");
  EXPECT_FALSE(result()["complete"]);
  EXPECT_EQ(compare(all).err.find("warning"), std::string::npos);
  EXPECT_TRUE(result()["complete"]);
  EXPECT_EQ(result()["methods"][0]["runs"].size(), 2U);
}

TEST_F(Compare, RefusesBeforeTheFirstRun) {
  expect_refusal({"--methods", "lion,sgd"}, "method 'sgd' is not known");
  expect_refusal({"--methods", "lion,lion"}, "'lion' is given twice");
  expect_refusal({"--methods", "../x=lion"}, "a label is made of letters");
  expect_refusal({"--methods", "lion", "--set", "dgc:lr=1"}, "'dgc' is not in --methods");
  expect_refusal({"--methods", "lion", "--set", "lion:lr"}, "must be METHOD:FLAG=VALUE");
  expect_refusal({"--methods", "lion", "--set", "lion:colour=red"}, "--colour");
  expect_refusal({"--methods", "lion", "--set", "lion:lr=fast"}, "--lr");
  expect_refusal({"--methods", "lion", "--set", "lion:init-std=5"}, "the same for all methods");
  expect_refusal({"--methods", "lion", "--set", "lion:lr=1", "--set", "lion:lr=2"}, "set twice");
  expect_refusal({"--methods", "lion", "--set", "lion:method-opt=tie=zero"}, "no option 'tie'");
  expect_refusal({"--methods", "lion", "--method-opt", "dense=x"}, "option dense = 'x'");
  expect_refusal({"--methods", "lion", "--seeds", "1,1"}, "--seeds: 1 is given twice");
  expect_refusal({"--methods", "lion", "--tune", "--seeds", "100"}, "--tune-seed 100");
  expect_refusal({"--methods", "lion", "--tune-steps", "5"}, "need --tune");
  expect_refusal({"--methods", "lion", "--lr", "0", "--tune"}, "finite start above 0");
  expect_refusal({"--methods", "compare.json=lion"}, "is the name of a file");
  expect_refusal({"--methods", "lion", "--save-every", "5"}, "--save-every", 2);
  expect_refusal({"--methods", "lion", "--set", "lion:save-every=5"}, "--save-every");
  expect_refusal({}, "--methods is required", 2);
  expect_refusal({"--methods", "lion", "--seeds", "x"}, "--seeds", 2);
  expect_refusal({"--methods", "lion", "--resume", "x"}, "--resume", 2);
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(Compare, RefusesWhatTrainingWouldRefuse) {
  expect_refusal({"--methods", "lion,sgdm", "--set", "sgdm:beta2=0.5"}, "sgdm has no beta2");
  expect_refusal({"--methods", "lion", "--set", "lion:beta1=1"}, "beta1 = 1 is not in [0, 1)");
  expect_refusal({"--methods", "lion,dlion-vote", "--clip-global-norm", "1"},
                 "dlion-vote: optimizer: clip_global_norm");
  expect_refusal({"--methods", "lion", "--steps", "4", "--warmup", "4"}, "lion: --warmup 4");
  expect_refusal(
      {"--methods", "lion", "--steps", "9", "--warmup", "4", "--tune", "--tune-steps", "4"},
      "lion: --warmup 4");
  expect_refusal({"--methods", "lion", "--sharding", "none"}, "--sharding");
  expect_refusal({"--methods", "lion", "--sharding", "dirichlet:1"}, "needs a task with labels");
  fs::remove(path("text"));
  expect_refusal({"--methods", "lion"}, path("text").string());
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace pride::app
