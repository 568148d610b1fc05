// `pride compare` from the command line: its runs, its search and its refusals.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "experiment_program.h"
#include "pride/registry.h"
#include "train_names.h"

namespace pride::app {
namespace {

using Arguments = std::vector<std::string>;

class Compare : public SweepProgram {
 protected:
  Arguments arguments(const Arguments& more) const {
    return test::plus(
        words("compare --data ", path(data_).string(), " --out ", path("out").string(),
              " --layers 1 --heads 2 --width 16 --context 16", " --batch 2 --workers 2"),
        more);
  }

  Outcome compare(const Arguments& more) const { return test::run_program(arguments(more)); }

  // of one label, tuning apart
  std::vector<json> runs_of(const std::string& label, const std::string& phase = "run") const {
    std::vector<json> found;
    for (const json& record : records()) {
      if (record["label"] == label && record["phase"] == phase) found.push_back(record);
    }
    return found;
  }

  void expect_refusal(const Arguments& more, const std::string& part, int code = 2) const {
    const Outcome outcome = test::run_here(arguments(more));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    expect_contains(outcome.err, part);
    EXPECT_EQ(outcome.out, "");
  }
};

const Arguments kTwo = {"--methods", "lion,dlion-vote", "--seeds", "1", "--steps", "3"};
const Arguments kFour = {"--methods", "lion,dlion-vote", "--seeds", "1,2", "--steps", "3"};

TEST_F(Compare, TrainsEveryMethodOnEverySeed) {
  const Outcome outcome = compare(test::plus(kFour, {"--lr", "1e-3"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "| `dlion-vote` | 1e-3 |");
  expect_contains(outcome.err, "[4/4] ");
  const json all = overview();
  EXPECT_TRUE(all["complete"]);
  EXPECT_EQ(all["failed"], 0);
  ASSERT_EQ(all["rows"].size(), 2U);
  for (const json& row : all["rows"]) {
    const auto runs = runs_of(row["row"]);
    ASSERT_EQ(runs.size(), 2U);
    EXPECT_EQ(row["lr"], 1e-3);
    double loss = 0;
    for (const json& run : runs) {
      loss += run["final"]["loss"].get<double>() / 2;
      const fs::path folder = path("out") / run["folder"].get<std::string>();
      const json summary = json::parse(bytes_of(folder / "summary.json"));
      EXPECT_EQ(run["param_hash"], summary["param_hash"]);
      EXPECT_EQ(run["seed"], summary["settings"]["seed"]);
      EXPECT_EQ(run["bytes_per_step"], summary["bytes"]["ranks"][0]["sent_per_step"]);
    }
    EXPECT_DOUBLE_EQ(row["results"]["final"]["loss"]["mean"].get<double>(), loss);
  }
  const auto lion = runs_of("lion");
  EXPECT_NE(lion[0]["first_loss"], lion[1]["first_loss"]) << "another seed, another start";
  const double dense = all["rows"][0]["results"]["ratio_to_fp32_ring"];
  const double vote = all["rows"][1]["results"]["ratio_to_fp32_ring"];
  EXPECT_NEAR(dense, 1, 0.1) << "frames of so small a model";
  EXPECT_LT(vote, 1.0 / 10);
}

// Every 30 seconds, or as often as PRIDE_PROGRESS says.
TEST_F(Compare, SaysThatItLivesWhereOutputIsNoTerminal) {
  const Arguments long_enough = {"--methods", "lion", "--seeds", "1", "--steps", "400"};
  ASSERT_EQ(setenv("PRIDE_PROGRESS", "0.05", 1), 0);
  const Outcome often = compare(long_enough);
  ASSERT_EQ(often.code, 0) << often.err;
  expect_contains(often.err, "... lion");
  expect_contains(often.err, ": step ");
  expect_contains(often.err, " left\n");
  fs::remove_all(path("out"));
  ASSERT_EQ(setenv("PRIDE_PROGRESS", "none", 1), 0);
  const Outcome silent = compare(kTwo);
  EXPECT_EQ(silent.err.find("... "), std::string::npos) << silent.err;
  ASSERT_EQ(setenv("PRIDE_PROGRESS", "often", 1), 0);
  const Outcome wrong = compare(kTwo);
  expect_contains(wrong.err, "PRIDE_PROGRESS = 'often': must be none, or seconds");
  unsetenv("PRIDE_PROGRESS");
}

// The loss of step 1 is that of the initial values on the first batches. With a rate of 0 the
// parameters stay the initial ones, which depend on nothing but the seed. Every method:
// Finetune.StartsAlikeAndRunsByEveryMethod.
TEST_F(Compare, GivesMethodsTheSameStartAndBatches) {
  const Outcome outcome =
      compare(words("--methods adamw,dlion-vote,local-vote --seeds 5 --steps 2 --lr 0 --json"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out), overview());
  EXPECT_EQ(overview()["unequal_starts"], json::array());
  const auto all = records();
  for (const json& run : all) {
    EXPECT_EQ(run["first_loss"], all[0]["first_loss"]) << run["label"];
    EXPECT_EQ(run["param_hash"], all[0]["param_hash"]) << run["label"];
    EXPECT_EQ(run["final"]["loss"], all[0]["final"]["loss"]) << run["label"];
  }
}

// Damaged contents of the folder.
TEST_F(Compare, MakesRunsWithUnreadableFilesAnew) {
  ASSERT_EQ(compare(kTwo).code, 0);
  const json before = overview()["rows"];
  const fs::path folder = fs::path("out") / runs_of("lion")[0]["folder"].get<std::string>();
  const auto expect_again = [&](const fs::path& spoilt) {
    const Outcome again = compare(kTwo);
    ASSERT_EQ(again.code, 0) << again.err;
    expect_contains(again.err, "pride: warning: " + path(spoilt.string()).string());
    for (int row = 0; row < 2; ++row) {
      EXPECT_EQ(overview()["rows"][row]["results"]["bytes_per_step"],
                before[row]["results"]["bytes_per_step"]);
    }
  };
  folder_.write(folder / "summary.json", "{\"settings\": ");
  expect_again(folder / "summary.json");
  const std::string steps = bytes_of(path((folder / "metrics.jsonl").string()));
  folder_.write(folder / "metrics.jsonl", steps.substr(0, steps.size() - 10));
  expect_again(folder / "metrics.jsonl");
  std::string summary = bytes_of(path((folder / "summary.json").string()));
  const std::size_t loss = summary.find("\"loss\": ", summary.find("\"final\""));
  folder_.write(folder / "summary.json", summary.insert(loss + 8, "\"abc\", \"had\": "));
  expect_again(folder / "summary.json");
}

TEST_F(Compare, SetsFlagsForOneMethodOnly) {
  const Outcome outcome = compare(words(
      "--methods vote=dlion-vote,zero=dlion-vote --seeds 1 --steps 2 --weight-decay 0.5 --set "
      "zero:method-opt=tie=zero --set zero:weight-decay=0.25 --set zero:decay-all=true"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json vote = runs_of("vote")[0]["settings"], zero = runs_of("zero")[0]["settings"];
  EXPECT_EQ(vote["method-opt"], json::array());
  EXPECT_EQ(vote["weight-decay"], 0.5);
  EXPECT_EQ(zero["method-opt"], json({"tie=zero"}));
  EXPECT_EQ(zero["weight-decay"], 0.25);
  EXPECT_EQ(zero["decay-all"], true);
}

TEST_F(Compare, AddsMethodOptionsOfItsOwnToTheSharedOnes) {
  ASSERT_EQ(compare(words("--methods a=dgc,b=dgc,c=dgc --seeds 1 --steps 2 --method-opt ratio=0.01 "
                          "--method-opt masking=no --set b:method-opt=ratio=0.1 --set "
                          "c:method-opt=warmup_steps=1"))
                .code,
            0);
  const auto options = [&](const char* label) {
    return runs_of(label)[0]["settings"]["method-opt"];
  };
  EXPECT_EQ(options("a"), json({"ratio=0.01", "masking=no"}));
  EXPECT_EQ(options("b"), json({"masking=no", "ratio=0.1"})) << "its own wins";
  EXPECT_EQ(options("c"), json({"ratio=0.01", "masking=no", "warmup_steps=1"}));
}

TEST_F(Compare, TunesFromTheRateThatATrainingHasByDefault) {
  const Outcome outcome = compare(
      words("--methods lion,sgdm --seeds 1 --steps 2 --tune --tune-steps 1 --tune-beta2 none"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(runs_of("lion", "tune")[0]["lr"], 1e-3) << "ten times the default, for a narrow GPT";
  EXPECT_EQ(runs_of("sgdm", "tune")[0]["lr"], 0.1) << "the default";
}

TEST_F(Compare, TunesRateAndBeta2OnASeedThatIsNotShown) {
  const Outcome outcome =
      compare(words("--methods lion,sgdm --seeds 1 --steps 20 --lr 0.02 --tune --tune-seed 7 "
                    "--tune-steps 10 --tune-beta2 0.9,0.99"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "Points tried by [tune], on its own seed:");
  for (const char* label : {"lion", "sgdm"}) {
    const auto tried = runs_of(label, "tune");
    EXPECT_EQ(tried[0]["lr"], 0.03) << "next to the rate that was given";
    std::set<double> rates;
    bool both = false;
    for (const json& run : tried) {
      EXPECT_EQ(run["seed"], 7);
      EXPECT_EQ(run["steps"], 10);
      rates.insert(run["lr"].get<double>());
      both = both || run["settings"]["beta2"] != tried[0]["settings"]["beta2"];
    }
    const json shown = runs_of(label)[0];
    EXPECT_EQ(shown["steps"], 20);
    EXPECT_LT(*rates.begin(), shown["lr"]) << "the best is interior";
    EXPECT_GT(*rates.rbegin(), shown["lr"]);
    EXPECT_EQ(both, std::string(label) == "lion") << "sgdm has no beta2";
  }
}

// onebit-adam begins with dense steps: by default, a fifth of the run.
TEST_F(Compare, CountsADenseBeginning) {
  const Outcome outcome =
      compare({"--methods", "adamw,onebit-adam", "--seeds", "1", "--steps", "20"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json rows = overview()["rows"];
  EXPECT_EQ(runs_of("onebit-adam")[0]["method"]["options"]["freeze_steps"], "4");
  const double dense = rows[0]["results"]["bytes_per_step"];
  const double mean = rows[1]["results"]["bytes_per_step"];
  const double late = rows[1]["results"]["late_bytes_per_step"];
  EXPECT_LT(late, dense / 10);
  EXPECT_NEAR(mean, 0.2 * dense + 0.8 * late, 0.05 * dense);
  expect_contains(outcome.out, " (late 1/");
}

TEST_F(Compare, ReadsItsFlagsFromAFile) {
  const auto file = folder_.write(
      "run.toml", "methods = [\"lion\"]\nseeds = [4]\nsteps = 2\nset = [\"lion:lr=0.5\"]\n");
  ASSERT_EQ(compare({"--config", file.string()}).code, 0);
  const json run = runs_of("lion")[0];
  EXPECT_EQ(run["seed"], 4);
  EXPECT_EQ(run["lr"], 0.5);
  EXPECT_EQ(run["steps"], 2);
}

TEST_F(Compare, RefusesBeforeTheFirstRun) {
  expect_refusal({"--methods", "lion,sgd"}, "unknown method 'sgd'");
  expect_refusal({"--methods", "lion,lion"}, "'lion' is given twice");
  expect_refusal({"--methods", "../x=lion"}, "a label is made of letters");
  expect_refusal({"--methods", "lion", "--set", "dgc:lr=1"}, "'dgc' is not in --methods");
  expect_refusal({"--methods", "lion", "--set", "lion:lr"}, "must be METHOD:FLAG=VALUE");
  expect_refusal({"--methods", "lion", "--set", "lion:colour=red"}, "'colour' is not a flag");
  expect_refusal({"--methods", "lion", "--set", "lion:lr=fast"}, "--lr");
  expect_refusal({"--methods", "lion", "--set", "lion:init-std=5"}, "the same for all methods");
  expect_refusal({"--methods", "lion", "--set", "lion:lr=1", "--set", "lion:lr=2"}, "set twice");
  expect_refusal({"--methods", "lion", "--set", "lion:method-opt=tie=zero"}, "no option 'tie'");
  expect_refusal({"--methods", "lion", "--method-opt", "dense=x"}, "option dense = 'x'");
  expect_refusal({"--methods", "lion", "--seeds", "1,1"}, "--seeds: 1 is given twice");
  expect_refusal({"--methods", "lion", "--tune", "--seeds", "100"}, "--tune-seed 100");
  expect_refusal({"--methods", "lion", "--tune-steps", "5"}, "need --tune");
  expect_refusal({"--methods", "lion", "--lr", "0", "--tune"}, "finite start above 0");
  expect_refusal({"--methods", "lion", "--set", "lion:lr=fast", "--tune"}, "error: lion: --lr: 'f");
  expect_refusal({"--methods", "lion", "--tune", "--beta2", "0.9"}, "give --tune-beta2 none");
  expect_refusal({"--methods", "lion", "--tune", "--tune-beta2", "0.9,1"}, "--tune-beta2 1: must");
  expect_refusal({"--methods", "lion", "--tune", "--tune-beta2", "0.9,none"}, "or none alone");
  expect_refusal({"--methods", "lion", "--tune", "--tune-beta2", "0.99,0.9"}, "must ascend");
  expect_refusal({"--methods", "lion", "--save-every", "5"}, "--save-every", 2);
  expect_refusal({"--methods", "lion", "--set", "lion:save-every=5"}, "save-every");
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
  expect_refusal({"--methods", "lion"}, path("text").string(), 1);
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace pride::app
