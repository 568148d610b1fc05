// Checkpoints of `pride train`, and the folder of its results: what is kept, refused, and gone on
// from.
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>

#include "program/io/folder_lock.h"
#include "program/io/safetensors.h"
#include "train_names.h"
#include "train_program.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;

TEST_F(Train, ResumesToTheSameBits) {
  const json whole = summary({"--steps", "8", "--save-every", "4", "--out", path("whole")});
  const std::string middle = checkpoint("whole", 4).string();
  const json rest = summary({"--steps", "8", "--resume", middle, "--out", path("rest")});
  EXPECT_EQ(rest["param_hash"], whole["param_hash"]);
  EXPECT_EQ(rest["final"]["loss"], whole["final"]["loss"]);
  EXPECT_EQ(metrics("rest").front()["step"], 5);
  for (const char* workers : {"3", "5"}) {  // with 5, a rank has no file there
    expect_error({"--steps", "8", "--resume", middle, "--workers", workers},
                 concat("has world 4, this run ", workers,
                        "; --resume-local keep, average or reset continues with another number"));
  }
  expect_error({"--steps", "8", "--resume", middle, "--method", "lion"}, "has method");
  expect_error({"--steps", "8", "--resume-local", "keep"}, "needs --resume");
  expect_error({"--steps", "8", "--resume", path("text")}, "no complete checkpoint there", 1);
  // a folder that a stopped save left behind is passed over
  std::filesystem::create_directories(path("rest") + "/checkpoints/step-6");
  expect_error({"--steps", "8", "--resume", path("rest")}, "no complete checkpoint there", 1);
  // in place: the later records of the first run make room
  const json again = summary({"--steps", "8", "--resume", middle, "--out", path("whole")});
  EXPECT_EQ(again["param_hash"], whole["param_hash"]);
  int steps = 0;
  for (const json& record : metrics("whole")) steps += record["type"] == "step" ? 1 : 0;
  EXPECT_EQ(steps, 8);
}

TEST_F(Train, ABfloat16CheckpointHasTheMastersOnceAndGoesOnToTheSameBits) {
  const Arguments run = {"--steps", "4", "--dtype", "bfloat16"};
  const json whole = summary(plus(run, {"--save-every", "2", "--out", path("whole")}));
  const fs::path middle = checkpoint("whole", 2);
  const json rest = summary(plus(run, {"--resume", middle.string()}));
  EXPECT_EQ(rest["param_hash"], whole["param_hash"]);
  EXPECT_EQ(rest["state_floats"], whole["state_floats"]);
  for (const auto& [name, tensor] : read_safetensors(middle / "state-rank0.safetensors")) {
    EXPECT_FALSE(name.starts_with("master/")) << name;
  }
}

TEST_F(Train, ResumesOnAnotherNumberOfWorkers) {
  const std::string middle = checkpoint("whole", 4).string();
  const json whole = summary({"--steps", "8", "--save-every", "4", "--out", path("whole")});
  const Arguments resume = {"--steps", "8", "--resume", middle};
  const auto resumed = [&](const Arguments& more) { return summary(plus(resume, more)); };
  // as many: nothing changes unless local state does
  EXPECT_EQ(resumed({"--resume-local", "keep"})["param_hash"], whole["param_hash"]);
  EXPECT_NE(resumed({"--resume-local", "reset"})["param_hash"], whole["param_hash"]);
  std::set<std::string> hashes;
  for (const char* workers : {"2", "3", "6"}) {
    for (const char* local : {"keep", "average", "reset"}) {
      const json run = resumed({"--workers", workers, "--resume-local", local});
      EXPECT_LT(run["final"]["loss"].get<double>(), 1.2 * whole["final"]["loss"].get<double>())
          << workers << " workers, " << local;
      hashes.insert(run["param_hash"].get<std::string>());
    }
  }
  EXPECT_EQ(hashes.size(), 9u) << "policies and numbers of workers make runs of their own";
}

// One bit of each file; and a state of a run with another rate.
TEST_F(Train, RefusesACheckpointWithAWrongBit) {
  const auto save = [&](const char* out, const char* lr) {
    summary(
        {"--steps", "2", "--workers", "2", "--save-every", "2", "--lr", lr, "--out", path(out)});
    return checkpoint(out, 2);
  };
  const fs::path saved = save("out", "1e-3"), other = save("other", "1e-2");
  const Arguments resume = words("--steps 4 --workers 2 --lr 1e-3 --resume ", saved.string());
  for (const char* file : {"checkpoint.json", "config.json", "model.safetensors",
                           "state-rank0.safetensors", "state-rank1.safetensors"}) {
    const std::string good = bytes_of(saved / file);
    SCOPED_TRACE(file);
    std::string bad = good;
    bad[good.size() - 3] ^= 4;
    folder_.write(saved / file, bad);
    expect_error(resume, file, 1);
    folder_.write(saved / file, good);
  }
  const fs::path state = saved / "state-rank1.safetensors";
  const std::string good = bytes_of(state);
  folder_.write(state, bytes_of(other / "state-rank1.safetensors"));
  expect_error(resume, "state-rank1.safetensors: damaged, or of another checkpoint", 1);
  folder_.write(state, good);
  EXPECT_EQ(summary(resume)["steps"], 4);
}

TEST_F(Train, ResumesFromTheNewestGoodCheckpointAndSaysSo) {
  const json whole = summary({"--steps", "6", "--save-every", "2", "--out", path("out")});
  std::string bytes = bytes_of(checkpoint("out", 6) / "model.safetensors");
  bytes.back() ^= 1;
  folder_.write(checkpoint("out", 6) / "model.safetensors", bytes);
  fs::remove(checkpoint("out", 4) / "state-rank3.safetensors");
  const json rest = summary({"--steps", "6", "--resume", path("out"), "--out", path("rest")});
  EXPECT_EQ(metrics("rest").front()["step"], 3);
  EXPECT_EQ(rest["param_hash"], whole["param_hash"]);
  ASSERT_EQ(rest["notes"].size(), 2u) << rest["notes"];
  expect_contains(rest["notes"][0].dump(), "step-6/model.safetensors: damaged");
  expect_contains(rest["notes"][1].dump(), "state-rank3.safetensors");
}

TEST_F(Train, SaysWhichSettingsHaveChangedSinceTheCheckpoint) {
  summary({"--steps", "4", "--save-every", "2", "--lr", "1e-3", "--out", path("out")});
  const Arguments resume = {"--steps", "4", "--resume", checkpoint("out", 2).string()};
  EXPECT_EQ(summary(plus(resume, {"--lr", "1e-3"}))["notes"], json::array());
  const json other = summary(
      plus(resume,
           words("--lr 1e-2 --beta2 0.9 --weight-decay 0.5 --schedule constant --eval-every 1")));
  EXPECT_EQ(other["notes"],
            json({"changed since the checkpoint: --lr was 0.001 and is 0.01",
                  "changed since the checkpoint: --beta2 was null and is 0.9",
                  "changed since the checkpoint: --weight-decay was null and is 0.5",
                  "changed since the checkpoint: --schedule was \"cosine\" and is \"constant\""}));
}

TEST_F(Train, LeavesTheResultsOfAFinishedRunAsTheyAre) {
  summary({"--steps", "4", "--save-every", "2", "--eval-every", "2", "--out", path("out")});
  const std::string results = bytes_of(path("out") + "/summary.json"),
                    records = bytes_of(path("out") + "/metrics.jsonl");
  const json again = summary(words("--steps 4 --save-every 2 --eval-every 2 --resume ", path("out"),
                                   " --out ", path("out")));
  EXPECT_EQ(again["steps_run"], 0);
  EXPECT_EQ(again["final"]["loss"], json::parse(results)["final"]["loss"]);
  EXPECT_EQ(bytes_of(path("out") + "/summary.json"), results);
  EXPECT_EQ(bytes_of(path("out") + "/metrics.jsonl"), records);
}

TEST_F(Train, KeepsTheNewestCheckpointsAndTheBest) {
  // a rate that is far too large: the best comes early
  summary(words("--steps 8 --save-every 1 --eval-every 1 --keep-checkpoints 2 --lr 10 --out ",
                path("out")));
  std::map<double, int> steps;
  for (const json& record : metrics("out")) {
    if (record["type"] == "eval") steps[record["loss"].get<double>()] = record["step"].get<int>();
  }
  const int best = steps.begin()->second;
  ASSERT_LT(best, 7);
  for (int step = 1; step <= 8; ++step) {
    EXPECT_EQ(fs::exists(checkpoint("out", step)), step == best || step >= 7) << step;
  }
}

TEST_F(Train, KeepsThreeCheckpointsWithoutAFlag) {
  summary({"--steps", "5", "--save-every", "1", "--out", path("out")});
  for (int step = 1; step <= 5; ++step) {
    EXPECT_EQ(fs::exists(checkpoint("out", step)), step >= 3) << step;
  }
}

// What comes after the checkpoint is of another course of the run.
TEST_F(Train, SetsLaterCheckpointsAsideWhenItGoesOnInPlace) {
  summary({"--steps", "6", "--save-every", "2", "--out", path("out")});
  const json again = summary({"--steps", "4", "--save-every", "2", "--resume",
                              checkpoint("out", 2).string(), "--out", path("out")});
  EXPECT_TRUE(fs::exists(checkpoint("out", 4)));
  EXPECT_FALSE(fs::exists(checkpoint("out", 6)));
  EXPECT_TRUE(fs::exists(checkpoint("out", 6).string() + ".dropped"));
  expect_contains(again["notes"].dump(), "step-6 is of another course");
}

TEST_F(Train, LetsOneRunAtATimeIntoItsFolder) {
  const FolderLock other(path(""), "run");
  expect_error({"--steps", "1", "--out", path(""), "--overwrite"}, "another run (process ", 1);
}

TEST_F(Train, EndsWithAnErrorWhereItsFolderIsRemoved) {
  const std::string command = command_line(tiny({"--steps", "100000", "--out", path("gone")}));
  for (const char* what : {"gone", "gone/metrics.jsonl"}) {
    const Outcome outcome = run_and(command, "gone", "rm -r " + path(what));
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    expect_contains(outcome.err, "metrics.jsonl: it was removed while the run wrote there");
    fs::remove_all(path("gone"));
  }
}

TEST_F(Train, OverwritesOnlyOnceTheRunBegins) {
  const json before = summary({"--steps", "2", "--save-every", "1", "--out", path("out")});
  const std::string kept = bytes_of(path("out") + "/summary.json");
  expect_error({"--steps", "2", "--out", path("out"), "--overwrite", "--resume", path("text")},
               "no complete checkpoint there", 1);
  expect_error({"--steps", "2", "--out", path("out"), "--overwrite", "--sharding", "dirichlet:1"},
               "needs a task with labels");
  EXPECT_EQ(bytes_of(path("out") + "/summary.json"), kept);
  EXPECT_TRUE(std::filesystem::exists(path("out") + "/checkpoints/step-2"));
  summary({"--steps", "1", "--out", path("out"), "--overwrite"});
  EXPECT_FALSE(std::filesystem::exists(path("out") + "/checkpoints"));
}

}  // namespace
}  // namespace pride::app
