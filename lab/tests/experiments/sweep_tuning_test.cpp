// `pride sweep` with [tune]: the choice, its runs, and refusals of the file or a flag.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "experiment_program.h"
#include "train_names.h"

namespace pride::app {
namespace {

TEST_F(SweepProgram, TunesOnceForCellsThatDifferInWhatTuningSets) {
  write(
      "[grid]\nmethod = \"lion\"\nseed = 1\nepochs = [0.01, 0.02]\n"
      "[tune]\nsteps = 1\n[tune.grid]\nlr = [1e-4, 1e-2]\n");
  std::istringstream lines(sweep("--list").out);
  int tuning = 0;
  for (std::string line; std::getline(lines, line);) {
    tuning += line.find("lion tuning, lr ") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(tuning, 2);
}

TEST_F(SweepProgram, ChoosesOnASeedOfItsOwnAndSaysWhatIsAtTheEndOfItsAxis) {
  // lion's best rate is the largest of two; vote's lies between one that does nothing and one that
  // does not converge
  write(std::string(kPair) + "[tune]\nseed = 7\n[tune.grid]\nlr = [1e-9, 1e-3]\n" +
            "sharding = \"replicate\"\n[method.dlion-vote.tune]\nlr = [1e-9, 1e-3, 1e3]\n",
        20);
  const Outcome outcome = sweep();
  const auto all = records();
  ASSERT_EQ(all.size(), 5U + 2U) << outcome.err;
  std::map<std::string, std::pair<double, double>> best;  // of each label: loss, rate
  for (const json& record : all) {
    if (record["phase"] != "tune") continue;
    EXPECT_EQ(record["seed"], 7);
    if (record["status"] != "done") continue;  // at a rate of 1000
    const double loss = record["final"]["loss"], rate = record["lr"];
    const auto at = best.emplace(record["label"], std::pair(loss, rate)).first;
    at->second = std::min(at->second, std::pair(loss, rate));
  }
  for (const json& record : all) {
    if (record["phase"] == "tune") continue;
    EXPECT_EQ(record["lr"], best.at(record["label"]).second);
  }
  const json tuned = overview()["tuned"];
  ASSERT_EQ(tuned.size(), 2U);
  EXPECT_EQ(tuned[0]["at_end_of_grid"], json::array({"lr"}));
  EXPECT_EQ(tuned[1]["chosen"]["lr"], "1e-3");
  EXPECT_EQ(tuned[1]["at_end_of_grid"], json::array());
  const std::size_t notes = outcome.out.find("lie beyond:\n\n- `lion`: lr 1e-3\n");
  ASSERT_NE(notes, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("- `dlion-vote`", notes), std::string::npos);
}

// From the middle to the best point, all of whose neighbours were tried.
TEST_F(SweepProgram, ClimbsFromTheMiddleOfTheGrid) {
  write(
      "[grid]\nmethod = \"lion\"\nseed = 1\n[tune]\nseed = 7\nsearch = \"climb\"\n"
      "[tune.grid]\nlr = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3]\nbeta2 = [0.9, 0.99]\n",
      20);
  std::istringstream before(sweep("--list").out);
  std::string first;
  std::getline(before, first);
  expect_contains(first, "lion tuning, beta2 0.9, lr 1e-5");
  const Outcome outcome = sweep();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::pair<double, double>, double> loss;  // by rate and beta2
  std::pair<double, double> chosen;
  for (const json& record : records()) {
    const std::pair point(record["lr"].get<double>(), record["settings"]["beta2"].get<double>());
    if (record["phase"] == "tune") {
      loss[point] = record["final"]["loss"];
    } else {
      chosen = point;
    }
  }
  // in 20 steps the largest rate is best: the climb leaves the low ones alone
  EXPECT_EQ(chosen.first, 1e-3);
  EXPECT_FALSE(loss.contains({1e-7, 0.9})) << "far from the best";
  for (const auto& [point, value] : loss) EXPECT_GE(value, loss.at(chosen));
  EXPECT_TRUE(loss.contains({1e-4, chosen.second}));
  EXPECT_TRUE(loss.contains({1e-3, chosen.second == 0.9 ? 0.99 : 0.9}));
  EXPECT_EQ(sweep().code, 0) << "goes on from what is there";
  EXPECT_EQ(records().size(), loss.size() + 1);
}

// No rate is shown that none of the runs had.
TEST_F(SweepProgram, NamesNoRateWhereTuningFoundNone) {
  write("[grid]\nmethod = \"lion\"\nseed = 1\n[tune]\nseed = 7\n[tune.grid]\nlr = [1e29, 1e30]\n",
        20);
  const Outcome outcome = sweep();
  EXPECT_EQ(outcome.code, 1);
  expect_contains(
      outcome.out,
      "failed: lion, seed 1: not run: no point of [tune.grid] gave a result; the last: step ");
  expect_contains(outcome.out, "| `lion` (0 of 1 runs) |   ? |");
}

TEST_F(SweepProgram, LetsTheCommandLineWinOverTuningOrRefusesIt) {
  write(
      "[grid]\nmethod = \"lion\"\nseed = 1\n[tune]\nsteps = 5\n[tune.grid]\nlr = [1e-3]\n"
      "[method.lion.tune]\nbeta1 = [0.5]\n");
  for (const char* flag : {"lr", "beta1"}) {
    const Outcome outcome = refused(concat("--set ", flag, "=0.5"));
    EXPECT_EQ(outcome.code, 2);
    expect_contains(outcome.err, concat("--set ", flag, ": [", *flag == 'l' ? "" : "method.lion."));
    expect_contains(outcome.err, concat("chooses --", flag));
    EXPECT_FALSE(fs::exists(path("out")));
  }
  ASSERT_EQ(sweep("--set steps=2").code, 0);
  for (const json& record : records()) EXPECT_EQ(record["settings"]["steps"], 2) << record["id"];
  ASSERT_EQ(sweep("--set epochs=0.01").code, 0);
  for (const json& record : records()) {
    EXPECT_TRUE(record["settings"]["steps"].is_null()) << record["id"];
    EXPECT_EQ(record["settings"]["epochs"], 0.01) << record["id"];
  }
  ASSERT_EQ(sweep().code, 0);
  for (const json& record : records()) {
    EXPECT_EQ(record["settings"]["steps"], record["phase"] == "tune" ? 5 : 3) << record["id"];
  }
}

}  // namespace
}  // namespace pride::app
