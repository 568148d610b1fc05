// `pride sweep` from the command line: its runs, repetitions, refusals and records. The oracle is
// `pride train` itself, and the identity of files that must not be touched.
// SPDX-License-Identifier: Apache-2.0
#include "experiment_program.h"

#include <signal.h>

#include <algorithm>

#include "text/small_vocabulary.h"
#include "train_names.h"

namespace pride::app {
namespace {

TEST_F(SweepProgram, MakesEveryRunWhateverTheJobsAndSaysHowToRepeatIt) {
  write(std::string(kPair) + "batch = [2, 4]\n");
  const Outcome outcome = sweep("--jobs 4");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_contains(outcome.out, "`dlion-vote, batch 4`");
  expect_contains(outcome.err, "[4/4] ");
  expect_contains(outcome.err, " left");
  const auto all = records();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_TRUE(overview()["complete"]);
  EXPECT_EQ(overview()["done"], 4);
  EXPECT_EQ(overview()["file"], bytes_of(path("try.toml")));
  fs::remove_all(path("out"));
  ASSERT_EQ(sweep("--jobs 1").code, 0);
  const auto one_by_one = records();
  ASSERT_EQ(one_by_one.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(one_by_one[i]["id"], all[i]["id"]) << "in the file's order, not that of their ends";
    EXPECT_EQ(one_by_one[i]["param_hash"], all[i]["param_hash"]);
  }
  // one of them by hand, from its line alone
  const json& one = all[3];
  std::string by_hand = one["command"];
  by_hand.replace(0, std::string("pride").size(), PRIDE_PROGRAM);
  by_hand += concat(" --quiet --out ", path("again").string(), " >/dev/null");
  ASSERT_EQ(std::system(by_hand.c_str()), 0);
  const json again = json::parse(bytes_of(path("again") / "summary.json"));
  EXPECT_EQ(again["param_hash"], one["param_hash"]);
  EXPECT_EQ(again["settings"], one["settings"]);
  EXPECT_EQ(again["data"]["hash"], one["data"]["hash"]);
}

TEST_F(SweepProgram, MakesOnlyWhatIsMissingOrChanged) {
  write(kPair);
  ASSERT_EQ(sweep().code, 0);
  const auto before = summaries();
  ASSERT_EQ(before.size(), 2U);
  ASSERT_EQ(sweep("--set overlap=true --set log-every=1").code, 0);
  EXPECT_EQ(summaries(), before) << "nothing was made again";
  write(std::string(kPair) + "[method.lion]\nlr = 1e-3\n");
  ASSERT_EQ(sweep().code, 0);
  const auto after = summaries();
  EXPECT_EQ(after.size(), 3U) << "lion's run, beside the old ones";
  for (const auto& [id, time] : before) EXPECT_EQ(after.at(id), time) << id;
  for (const json& record : records()) {
    if (record["label"] != "lion") continue;
    EXPECT_EQ(record["settings"]["lr"], 1e-3) << "no old run among them";
  }
  EXPECT_EQ(records().size(), 2U);
}

TEST_F(SweepProgram, MakesRunsWhoseSettingsMakeALongName) {
  const std::string label(100, 'l');
  write(concat("[grid]\nmethod = \"", label, "\"\nseed = [1, 2]\nlr = [\"0.", std::string(160, '0'),
               "1\", \"0.001\"]\n[method.", label, "]\nmethod = \"lion\"\n"));
  const Outcome outcome = sweep();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(summaries().size(), 4U);
}

TEST_F(SweepProgram, KnowsDataByTheirContent) {
  write(kPair);
  ASSERT_EQ(sweep().code, 0);
  const auto before = summaries();
  fs::rename(path("text"), path("moved"));
  data_ = "moved";
  ASSERT_EQ(sweep().code, 0);
  EXPECT_EQ(summaries(), before) << "the same data elsewhere";
  folder_.write("moved", std::string(40000, 'x'));
  ASSERT_EQ(sweep().code, 0);
  EXPECT_EQ(summaries().size(), 4U) << "other data in the same place";
  const auto all = records();
  ASSERT_EQ(all.size(), 2U);
  for (const json& record : all) EXPECT_EQ(record["data"]["hash"], all[0]["data"]["hash"]);
}

TEST_F(SweepProgram, KnowsTheModelThatRunsBeginWithByItsContent) {
  const std::string one = "[grid]\nmethod = \"lion\"\nseed = 1\n";
  write(one);
  ASSERT_EQ(sweep().code, 0);
  fs::create_directories(path("init"));
  for (const char* file : {"model.safetensors", "config.json"}) {
    fs::copy_file(path("out") / std::string(records()[0]["folder"]) / file, path("init") / file);
  }
  const auto begin_with = [&](const fs::path& model) {
    write(concat("init = \"", model.string(), "\"\n", one));
    EXPECT_EQ(sweep().code, 0);
    return summaries();
  };
  const auto before = begin_with(path("init"));
  EXPECT_EQ(before.size(), 2U);
  fs::rename(path("init"), path("moved"));
  EXPECT_EQ(begin_with(path("moved")), before) << "the same model elsewhere";
  std::string weights = bytes_of(path("moved") / "model.safetensors");
  weights[weights.size() - 4] ^= 1;  // the lowest bit of the last one
  folder_.write("moved/model.safetensors", weights);
  EXPECT_EQ(begin_with(path("moved")).size(), 3U) << "another model in the same place";
  EXPECT_EQ(records().size(), 1U);
  // a summary of the right name whose run began with another model
  change_summaries([](json& summary) { summary["model"]["size"]["init_hash"] = "0"; });
  expect_contains(sweep("--list").out, "0 done, 0 failed, 1 missing");
}

TEST_F(SweepProgram, MakesARunAgainWhoseModelStartedInAnotherWay) {
  write("[grid]\nmethod = \"lion\"\nseed = 1\ninit-std = 0.1\n");
  ASSERT_EQ(sweep().code, 0);
  expect_contains(sweep("--list").out, "1 done, 0 failed, 0 missing");
  // as versions wrote it that began with other weights by default
  change_summaries([](json& summary) { summary["model"]["size"].erase("embedding_std"); });
  expect_contains(sweep("--list").out, "0 done, 0 failed, 1 missing");
}

TEST_F(SweepProgram, KnowsTheSameVocabularyInAnotherPlace) {
  fs::path vocabulary = test::write_small_vocabulary(folder_);
  ASSERT_EQ(
      std::system(concat(PRIDE_PROGRAM, " tokenize ", path("text").string(), " --vocab ",
                         vocabulary.string(), " --out ", path("shards").string(), " >/dev/null")
                      .c_str()),
      0);
  data_ = "shards";
  write(concat("vocab = \"", vocabulary.string(), "\"\n", kPair));
  ASSERT_EQ(sweep().code, 0);
  const auto before = summaries();
  ASSERT_EQ(before.size(), 2U);
  fs::rename(vocabulary, path("moved"));
  write(concat("vocab = \"", path("moved").string(), "\"\n", kPair));
  ASSERT_EQ(sweep().code, 0);
  EXPECT_EQ(summaries(), before);
}

TEST_F(SweepProgram, RecordsARunThatFailsAndGoesOn) {
  write(std::string(kPair) + "[method.lion]\nlr = 1e30\n", 20);
  const Outcome outcome = sweep();
  EXPECT_EQ(outcome.code, 1);
  expect_contains(outcome.err, "pride: error: 1 run failed");
  expect_contains(outcome.out,
                  {"| `lion` (0 of 1 runs) | 1e30 |",
                   "failed: lion, lr 1e30, seed 1: ", "NaN or Inf in the gradient of"});
  EXPECT_EQ(overview()["failed"], 1);
  EXPECT_TRUE(overview()["rows"][0]["results"].is_null());
  EXPECT_TRUE(overview()["rows"][1]["results"].is_object());
  int failed = 0;
  for (const json& record : records()) {
    const bool lion = record["label"] == "lion";
    EXPECT_EQ(record["status"], lion ? "failed" : "done");
    EXPECT_EQ(record.contains("error"), lion);
    failed += lion ? 1 : 0;
  }
  EXPECT_EQ(failed, 1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(sweep().code, 1) << "still failed, and not made again";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  expect_contains(sweep("--list").out, "failed  lion");
}

// The loss is finite and its exponential is not: the report calls that diverged, and so must we.
TEST_F(SweepProgram, CountsARunWithAnInfinitePerplexityAsFailed) {
  write("[grid]\nmethod = \"lion\"\nseed = 1\nlr = [1e-4, 1e4]\n", 20);
  EXPECT_EQ(sweep().code, 1);
  const auto all = records();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["status"], "done");
  EXPECT_EQ(all[1]["status"], "failed");
  expect_contains(all[1]["error"], "the final perplexity is not finite");
  EXPECT_TRUE(all[1]["final"]["loss"].is_number());
  expect_contains(sweep().out, "failed: lion, lr 1e4, seed 1: ");
}

// A child of any thread of the process; 0 if there is none yet.
pid_t child_of(pid_t parent) {
  std::error_code gone;
  for (fs::directory_iterator at(concat("/proc/", parent, "/task"), gone), end; at != end;
       at.increment(gone)) {
    std::ifstream in(at->path() / "children");
    pid_t child = 0;
    if (in >> child) return child;
  }
  return 0;
}

// SIGKILL as the kernel sends it when memory is short; SIGTERM ends a run in good order.
TEST_F(SweepProgram, MakesARunAgainThatASignalEnded) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    SCOPED_TRACE(signal);
    fs::remove_all(path("out"));
    write("[grid]\nmethod = \"lion\"\nseed = 1\n", 1'000'000);
    const pid_t sweep_itself = start();
    wait_until([&] {
      return fs::exists(path("out") / "runs") &&
             std::ranges::any_of(fs::directory_iterator(path("out") / "runs"), [](const auto& at) {
               return !bytes_of(at.path() / "metrics.jsonl").empty();
             });
    });
    const pid_t run = child_of(sweep_itself);
    EXPECT_GT(run, 0);
    kill(run > 0 ? run : sweep_itself, signal);
    EXPECT_EQ(wait(sweep_itself), 1);
    expect_contains(bytes_of(path("err")), "repeats only runs ended by a signal (1)");
    expect_contains(sweep("--list").out, "missing lion");
  }
}

TEST_F(SweepProgram, RecordsAFlagThatOneMethodRefuses) {
  write(std::string(kPair) + "[method.lion]\nmethod-opt = [\"nonsense=1\"]\n");
  const Outcome outcome = sweep();
  EXPECT_EQ(outcome.code, 1);
  EXPECT_LT(outcome.err.find("refused: lion, seed 1: "), outcome.err.find("dlion-vote, seed 1: "));
  for (const json& record : records()) {
    EXPECT_EQ(record["status"], record["label"] == "lion" ? "failed" : "done");
    if (record["label"] == "lion") expect_contains(record["error"], "nonsense");
  }
}

TEST_F(SweepProgram, RefusesBeforeAnyRun) {
  const std::string pair = kPair;
  expect_refusal(pair + "task = \"mnist\"\n", "--task mnist: must be one of lm, fewshot");
  expect_refusal(pair + "model = \"gpt-9\"\n", "gpt-9");
  expect_refusal("[grid]\nmethod = [\"lion\", \"dlionvote\"]\nseed = 1\n", "try.toml: dlionvote: ");
  // a row would be named by a rate of the grid, and have the chosen one
  expect_refusal(pair + "lr = [1e-3, 1e-1]\n[tune]\n[tune.grid]\nlr = [1e-4, 3e-4]\n",
                 "lion has several values of --lr, and its [tune.grid] chooses --lr");
  expect_refusal(pair + "epochs = [1, 2]\n[tune]\n[tune.grid]\nsteps = [1, 2]\n",
                 "several values of --epochs, and its [tune.grid] chooses --steps");
  const std::string grid = "[tune.grid]\nlr = [1e-3, 1e-2]\n";
  expect_refusal(pair + "[tune]\nby = \"accuracy\"\n" + grid, "the task lm has no accuracy");
  for (const char* flag : {"nope", "seed", "save-every"}) {
    expect_refusal(pair, concat("--set ", flag, "=1: '", flag, "' is not a flag"),
                   concat("--set ", flag, "=1"));
  }
  write(concat("[grid]\nmethod = \"", std::string(5000, 'x'), "\"\nseed = 1\n"));
  const std::string long_name = refused().err;
  expect_contains(long_name, "a label has at most 100 characters");
  EXPECT_LT(long_name.size(), 600U) << "it is not shown whole";
  // another experiment's, none of ours
  for (const auto& [file, text, why] :
       {std::tuple("sweep.json", "{\"experiment\": \"compare\"}", "holds the records of 'compare'"),
        {"sweep.json", "{\"experiment\": 3}", "holds the records of '3'"}}) {
    folder_.write(fs::path("out") / file, text);
    write(kPair);
    expect_contains(refused().err, why);
    fs::remove_all(path("out"));
  }
}

TEST_F(SweepProgram, RefusesToRunAsAJob) {
  write(kPair);
  for (const char* launcher : {"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0",
                               "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1"}) {
    for (const std::string& words :
         {command(""),
          concat(PRIDE_PROGRAM, " compare --methods lion --out ", path("out").string())}) {
      const Outcome outcome = test::run_shell(concat("env ", launcher, " ", words));
      EXPECT_EQ(outcome.code, 2);
      expect_contains(outcome.err, "run it without mpirun, srun or torchrun");
    }
  }
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(SweepProgram, RefusesNamesThatAreNotUtf8) {
  write(kPair);
  const std::string end = concat(" --data ", path("text").string(), " --out ");
  const std::string file = path("try.toml").string(), bad = path("bad\xFF").string();
  for (const std::string& words : {file + end + bad, bad + end + path("out").string()}) {
    const Outcome outcome = test::run_shell(concat(PRIDE_PROGRAM, " sweep ", words));
    EXPECT_EQ(outcome.code, 2);
    expect_contains(outcome.err, "not UTF-8");
  }
  EXPECT_FALSE(fs::exists(bad));
}

// SIGTERM stops it as SIGINT does (below).
TEST_F(SweepProgram, GoesOnAfterItWasStoppedOrKilled) {
  for (const int signal : {SIGINT, SIGKILL}) {
    SCOPED_TRACE(signal);
    fs::remove_all(path("out"));
    write("[grid]\nmethod = \"lion\"\nseed = [1, 2, 3]\n", 100);
    const pid_t child = start();
    wait_until([&] { return !records().empty(); });
    kill(child, signal);
    EXPECT_EQ(wait(child), signal == SIGKILL ? 128 + SIGKILL : 130);
    if (signal != SIGKILL) expect_contains(bytes_of(path("err")), "pride: interrupted; ");
    const auto before = summaries();
    const auto kept = records();
    ASSERT_GE(kept.size(), 1U);
    ASSERT_LT(kept.size(), 3U) << "the test was too slow to stop it";
    ASSERT_EQ(sweep("--quiet").code, 0);
    const auto after = summaries();
    EXPECT_EQ(after.size(), 3U);
    for (const json& record : kept) {
      EXPECT_EQ(after.at(record["id"]), before.at(record["id"])) << "made again: " << record["id"];
    }
    EXPECT_EQ(records().size(), 3U);
    EXPECT_TRUE(overview()["complete"]);
  }
}

TEST_F(SweepProgram, RefusesAFolderInWhichAnotherIsAtWork) {
  write(kPair, 2000);
  const pid_t child = start();
  wait_until([&] { return fs::exists(path("out") / "sweep.json"); });
  const Outcome outcome = sweep();
  EXPECT_EQ(outcome.code, 1);
  expect_contains(outcome.err, concat("another sweep (process ", child, ")"));
  EXPECT_EQ(sweep("--list").code, 0) << "looking is allowed";
  kill(child, SIGTERM);
  EXPECT_EQ(wait(child), 130);
  expect_contains(bytes_of(path("err")), "pride: interrupted; ");
}

}  // namespace
}  // namespace pride::app
