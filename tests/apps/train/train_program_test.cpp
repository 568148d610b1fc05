// `pride train` from the command line: learning, equal bits, resuming, records, and errors.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "apps/io/temp_folder.h"
#include "io/safetensors.h"
#include "pride/error.h"

namespace pride::app {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::TempFolder;
using Arguments = std::vector<std::string>;

constexpr const char* kMethods[] = {"adamw", "lion", "dlion-vote", "dlion-avg"};

struct Outcome {
  int code = -1;
  std::string out, err;
};

Outcome run_shell(const std::string& command) {
  const TempFolder folder;
  const std::string out = (folder.path() / "out").string(), err = (folder.path() / "err").string();
  const int status = std::system(concat(command, " >", out, " 2>", err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), bytes_of(out),
          bytes_of(err)};
}

std::string command_line(const Arguments& arguments) {
  std::string command = concat(PRIDE_PROGRAM, " train");
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  return command;
}

Outcome train(const Arguments& arguments) { return run_shell(command_line(arguments)); }

// text with structure, so that a few steps lower the loss
std::string sample_text() {
  std::string text;
  for (int i = 0; text.size() < 40000; ++i) {
    text += concat("line ", i % 17, ": the quick brown fox jumps over the lazy dog\n");
  }
  return text;
}

class Train : public testing::Test {
 protected:
  Train() { folder_.write("text", sample_text()); }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  // a run of a second or so; later flags override earlier ones nowhere, so keep them apart
  Arguments tiny(Arguments more) const {
    Arguments all = {"--data", path("text"), "--layers", "1",       "--heads", "2",      "--width",
                     "32",     "--context",  "16",       "--batch", "4",       "--quiet"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  json summary(const Arguments& more) const {
    Arguments all = tiny(more);
    all.push_back("--json");
    const Outcome outcome = train(all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }

  void expect_error(const Arguments& more, const std::string& part) const {
    const Outcome outcome = train(tiny(more));
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }

  std::vector<json> metrics(const std::string& out) const {
    std::vector<json> records;
    std::istringstream lines(bytes_of(path(out) + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
    return records;
  }

  TempFolder folder_;
};

TEST_F(Train, LowersTheLossByEveryMethod) {
  for (const std::string method : kMethods) {
    const json s = summary({"--method", method, "--steps", "60", "--lr", "3e-3"});
    // a uniform guess is ln 256 = 5.55 nats
    EXPECT_LT(s["final"]["loss"].get<double>(), 3.5) << method;
    const double nats = s["final"]["loss"];
    EXPECT_NEAR(s["final"]["bits_per_byte"].get<double>(), nats / std::log(2.0), 1e-9);
    EXPECT_NEAR(s["final"]["perplexity"].get<double>(), std::exp(nats), 1e-6);
  }
}

TEST_F(Train, LearnsWithGradientsSentInBf16AndSendsHalfTheBytes) {
  const auto run = [&](const char* how) {
    return summary({"--method", "lion", "--method-opt", concat("dense=", how), "--workers", "2",
                    "--steps", "60", "--lr", "3e-3"});
  };
  const json narrow = run("bf16"), wide = run("ordered");
  EXPECT_LT(narrow["final"]["loss"].get<double>(), 3.5);
  EXPECT_NE(narrow["param_hash"], wide["param_hash"]);
  EXPECT_EQ(narrow["method"]["options"], json({{"dense", "bf16"}}));
  const auto sent = [](const json& s) {
    return s["bytes"]["ranks"][0]["sent_per_step"].get<double>();
  };
  EXPECT_NEAR(sent(narrow) / sent(wide), 0.5, 0.02);
}

TEST_F(Train, RecordsWhatHappened) {
  const json s = summary({"--steps", "6", "--workers", "3", "--eval-every", "3", "--out",
                          path("out"), "--accumulate", "2", "--clip-norm", "1"});
  EXPECT_EQ(json::parse(bytes_of(path("out") + "/summary.json")), s);
  EXPECT_EQ(s["world"], 3);
  EXPECT_EQ(s["steps"], 6);
  EXPECT_EQ(s["samples_per_step"], 3 * 4 * 2);
  EXPECT_FALSE(s["interrupted"].get<bool>());
  EXPECT_EQ(s["param_hash"].get<std::string>().size(), 16U);
  for (const auto& [library, threads] : s["threads"].items()) EXPECT_EQ(threads, 1) << library;
  ASSERT_EQ(s["bytes"]["ranks"].size(), 3U);

  int steps = 0, evals = 0;
  std::uint64_t sent = 0;
  for (const json& record : metrics("out")) {
    if (record["type"] == "step") {
      EXPECT_EQ(record["step"], ++steps);
      sent += record["bytes_sent"].get<std::uint64_t>();
      for (const char* key :
           {"loss", "lr", "data_s", "backward_s", "encode_s", "exchange_s", "apply_s"}) {
        EXPECT_GE(record.at(key).get<double>(), 0) << key;
      }
    } else {
      EXPECT_EQ(record["step"], ++evals * 3);
      EXPECT_GT(record["bits_per_byte"].get<double>(), 0);
    }
  }
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(evals, 2);
  // not given: the defaults
  EXPECT_EQ(s["method"]["options"],
            json({{"tie", "hash"}, {"form", "auto"}, {"round_bytes", "12500"}}));
  EXPECT_EQ(s["exchange_forms"], json({{"direct", 1}})) << "a small model is one small bucket";
  EXPECT_EQ(s["bytes"]["cost_bound"], true);
  const double cost = s["bytes"]["cost_up"].get<double>() + s["bytes"]["cost_down"].get<double>();
  EXPECT_DOUBLE_EQ(s["bytes"]["ranks"][0]["sent_per_step"].get<double>(), cost);
  EXPECT_GE(sent, s["bytes"]["ranks"][0]["sent"].get<std::uint64_t>());

  const auto tensors = read_safetensors(path("out") + "/model.safetensors");
  EXPECT_EQ(tensors.at("h.0.attn.c_attn.weight").shape, (std::vector<std::int64_t>{32, 96}));
  std::size_t n = 0;
  for (const auto& [name, tensor] : tensors) n += tensor.values.size();
  EXPECT_EQ(s["model"]["parameters"], n);
}

TEST_F(Train, GivesTheSameBitsForAnyBucketsAndOverlap) {
  for (const std::string method : kMethods) {
    const json a = summary({"--steps", "5", "--method", method});
    const json b =
        summary({"--steps", "5", "--method", method, "--bucket-coords", "1000", "--overlap"});
    EXPECT_EQ(a["param_hash"], b["param_hash"]) << method;
    EXPECT_EQ(a["final"]["loss"], b["final"]["loss"]) << method;
  }
}

TEST_F(Train, GivesTheSameBitsInTwoLevels) {
  for (const std::string method : {"dlion-vote", "dlion-avg"}) {
    const json one = summary({"--steps", "5", "--method", method});
    const json two = summary({"--steps", "5", "--method", method, "--hierarchical", "2"});
    EXPECT_EQ(one["param_hash"], two["param_hash"]) << method;
    EXPECT_NE(one["bytes"], two["bytes"]) << method;
    const json alone = summary({"--steps", "5", "--method", method, "--hierarchical", "auto"});
    EXPECT_EQ(one["bytes"], alone["bytes"]) << "threads share one host";
  }
}

TEST_F(Train, ResumesToTheSameBits) {
  const json whole = summary({"--steps", "8", "--save-every", "4", "--out", path("whole")});
  const std::string middle = path("whole") + "/checkpoints/step-4";
  const json rest = summary({"--steps", "8", "--resume", middle, "--out", path("rest")});
  EXPECT_EQ(rest["param_hash"], whole["param_hash"]);
  EXPECT_EQ(rest["final"]["loss"], whole["final"]["loss"]);
  EXPECT_EQ(metrics("rest").front()["step"], 5);
  expect_error({"--steps", "8", "--resume", middle, "--workers", "3"}, "has world 4, this run 3");
  expect_error({"--steps", "8", "--resume", middle, "--method", "lion"}, "has method");
  expect_error({"--steps", "8", "--resume", path("text")}, "no complete checkpoint there");
  // a folder that a stopped save left behind is passed over
  std::filesystem::create_directories(path("rest") + "/checkpoints/step-6");
  expect_error({"--steps", "8", "--resume", path("rest")}, "no complete checkpoint there");
  // in place: the later records of the first run make room
  const json again = summary({"--steps", "8", "--resume", middle, "--out", path("whole")});
  EXPECT_EQ(again["param_hash"], whole["param_hash"]);
  int steps = 0;
  for (const json& record : metrics("whole")) steps += record["type"] == "step" ? 1 : 0;
  EXPECT_EQ(steps, 8);
}

TEST_F(Train, RefusesAMixedCheckpoint) {
  namespace fs = std::filesystem;
  summary({"--steps", "4", "--save-every", "2", "--out", path("out")});
  const fs::path two = path("out") + "/checkpoints/step-2",
                 four = path("out") + "/checkpoints/step-4";
  const Arguments resume = {"--steps", "4", "--resume", four.string()};
  const auto expect_refusal = [&](const char* file, const char* part) {
    fs::rename(four / file, path("kept"));
    fs::copy_file(two / file, four / file);
    expect_error(resume, part);
    fs::rename(path("kept"), four / file);
  };
  expect_refusal("state-rank2.safetensors", "state-rank2.safetensors is of step 2");
  expect_refusal("model.safetensors", "model.safetensors, as rank 0 reads it, has param_hash");
  summary(resume);
}

TEST_F(Train, OverwritesOnlyOnceTheRunBegins) {
  const json before = summary({"--steps", "2", "--save-every", "1", "--out", path("out")});
  const std::string kept = bytes_of(path("out") + "/summary.json");
  expect_error({"--steps", "2", "--out", path("out"), "--overwrite", "--resume", path("text")},
               "no complete checkpoint there");
  expect_error({"--steps", "2", "--out", path("out"), "--overwrite", "--sharding", "dirichlet:1"},
               "needs a task with labels");
  EXPECT_EQ(bytes_of(path("out") + "/summary.json"), kept);
  EXPECT_TRUE(std::filesystem::exists(path("out") + "/checkpoints/step-2"));
  summary({"--steps", "1", "--out", path("out"), "--overwrite"});
  EXPECT_FALSE(std::filesystem::exists(path("out") + "/checkpoints"));
}

TEST_F(Train, NamesTensorRankAndStepOfANonFiniteGradient) {
  expect_error({"--steps", "5", "--lr", "1e30"}, "NaN or Inf in the gradient of");
  const json skipped =
      summary({"--steps", "5", "--lr", "1e30", "--non-finite", "skip", "--eval-batches", "1"});
  EXPECT_GT(skipped["steps_skipped"].get<int>(), 0);
  EXPECT_TRUE(skipped["final"]["loss"].is_null()) << "JSON knows no NaN";
  EXPECT_TRUE(skipped["final"]["bits_per_byte"].is_null());
  const Arguments endless = {"--steps",      "50",   "--lr",      "1e30",
                             "--non-finite", "skip", "--workers", "2"};
  expect_error(endless, "20 steps in a row were skipped, up to step 2");
}

TEST_F(Train, RefusesWhatCannotBe) {
  folder_.write("full/file", "x");
  expect_error({"--steps", "2", "--out", path("full")}, "the folder is not empty");
  expect_error({"--sharding", "dirichlet:0.5"}, "needs a task with labels");
  expect_error({"--method", "sgd"}, "dlion-vote");
  expect_error({"--steps", "5", "--warmup", "5"}, "warm");
  expect_error({"--method-opt", "tie"}, "must be key=value");
  expect_error({"--device", "cuda"}, "built without CUDA");
  expect_error({"--lr", "inf"}, "--lr inf: must be finite");
  EXPECT_EQ(train({"--steps", "2", "--epochs", "1"}).code, 2);
}

TEST_F(Train, RefusesABatchLargerThanAWorkersSamples) {
  const Outcome outcome = train({"--data", path("text"), "--context", "16", "--batch", "100000"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("--batch 100000: a worker has "), std::string::npos) << outcome.err;
}

TEST_F(Train, SaysWhatTorchSaysInOneLine) {
  // one matrix of 13 TB
  const Outcome outcome = train({"--data", path("text"), "--width", "1048576", "--heads", "1",
                                 "--layers", "1", "--context", "16", "--steps", "1"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("pride: error: torch: "), std::string::npos) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
}

TEST_F(Train, StopsTogetherOnAnInterrupt) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string command = concat(
        "exec ", command_line(tiny({"--steps", "1000000", "--out", path("out")})), " >/dev/null");
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  const std::string file = path("out") + "/metrics.jsonl";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (bytes_of(file).size() < 1000 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 130);
  const json s = json::parse(bytes_of(path("out") + "/summary.json"));
  EXPECT_TRUE(s["interrupted"].get<bool>());
  EXPECT_GT(s["steps"].get<int>(), 0);
  EXPECT_EQ(s["steps"], metrics("out").back()["step"]);
}

TEST_F(Train, LearnsRealImages) {
  const char* set = std::getenv("PRIDE_DATA");
  const std::string data =
      set != nullptr ? set : concat(PRIDE_SOURCE_DIR, "/../shared/data/cifar10");
  if (!std::filesystem::exists(data)) {
    GTEST_SKIP() << "no CIFAR-10: set PRIDE_DATA to a folder with its binary files";
  }
  const Outcome outcome = train({"--task", "cifar10", "--data", data, "--steps", "40", "--lr",
                                 "1e-3", "--eval-batches", "4", "--layers", "2", "--width", "64",
                                 "--sharding", "dirichlet:10", "--quiet", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // a guess is right once in ten
  EXPECT_GT(json::parse(outcome.out)["final"]["accuracy"].get<double>(), 0.18);
}

#ifdef PRIDE_RANK_LAUNCHER
std::string launch(int n, const Arguments& arguments) {
  return concat(PRIDE_RANK_LAUNCHER, " ", n, " ", command_line(arguments));
}

TEST_F(Train, GivesTheSameBitsOverC10d) {
  for (const std::string method : {"dlion-vote", "adamw"}) {
    const json threads = summary({"--steps", "4", "--method", method});
    const Outcome outcome =
        run_shell(launch(4, tiny({"--steps", "4", "--method", method, "--json"})));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json processes = json::parse(outcome.out);
    EXPECT_EQ(processes["transport"], "c10d");
    EXPECT_EQ(processes["param_hash"], threads["param_hash"]) << method;
    EXPECT_EQ(processes["final"], threads["final"]) << method;
  }
}

TEST_F(Train, EndsTheWholeC10dJobOnAnError) {
  const Outcome count = run_shell(launch(2, tiny({"--workers", "3", "--steps", "2"})));
  EXPECT_NE(count.code, 0);
  EXPECT_NE(count.err.find("this torchrun job has 2 processes"), std::string::npos) << count.err;
  const Outcome diverged = run_shell(launch(2, tiny({"--steps", "5", "--lr", "1e30"})));
  EXPECT_NE(diverged.code, 0);
  EXPECT_NE(diverged.err.find("NaN or Inf in the gradient of"), std::string::npos) << diverged.err;
}

TEST_F(Train, WaitsForTorchrunsRanksNoLongerThanItsTimeout) {
  const std::string place = concat(
      "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", 20000 + getpid() % 10000, " ");
  const Outcome alone = run_shell(
      concat("timeout 30 env ", place, command_line(tiny({"--steps", "1", "--timeout", "0.5"}))));
  EXPECT_EQ(alone.code, 1) << alone.err;
  EXPECT_NE(alone.err.find("the ranks do not meet at"), std::string::npos) << alone.err;
}

TEST_F(Train, UsesTheTransportThatTheFlagNames) {
  const Outcome threads =
      run_shell(launch(1, tiny({"--steps", "1", "--json", "--transport", "threads"})));
  ASSERT_EQ(threads.code, 0) << threads.err;
  EXPECT_EQ(json::parse(threads.out)["transport"], "threads");
  const Outcome alone = run_shell(command_line(tiny({"--steps", "1", "--transport", "c10d"})));
  EXPECT_NE(alone.code, 0);
  EXPECT_NE(alone.err.find("RANK, WORLD_SIZE"), std::string::npos) << alone.err;
}
#endif

#ifdef PRIDE_MPIEXEC
std::string mpiexec(int n, const Arguments& arguments) {
  return concat(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 ",
      PRIDE_MPIEXEC, " -n ", n, " ", command_line(arguments));
}

TEST_F(Train, GivesTheSameBitsUnderMpi) {
  for (const std::string method : kMethods) {
    const json threads = summary({"--steps", "4", "--method", method});
    const Outcome outcome =
        run_shell(mpiexec(4, tiny({"--steps", "4", "--method", method, "--json"})));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json processes = json::parse(outcome.out);
    EXPECT_EQ(processes["transport"], "mpi");
    EXPECT_EQ(processes["param_hash"], threads["param_hash"]) << method;
    EXPECT_EQ(processes["final"], threads["final"]) << method;
  }
}

TEST_F(Train, ChoosesTheBucketsFromTheNetworkBetweenProcesses) {
  const auto summary_of = [&](Arguments more) {
    more.insert(more.end(), {"--steps", "1", "--json"});
    const Outcome outcome = run_shell(mpiexec(2, tiny(more)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  };
  const json chosen = summary_of({});
  EXPECT_EQ(chosen["bucket_coords"], chosen["model"]["parameters"]) << "too small to cut";
  EXPECT_EQ(chosen["settings"]["overlap"], true);
  const json given = summary_of({"--bucket-mb", "4", "--no-overlap"});
  EXPECT_EQ(given["bucket_coords"], 1 << 20);
  EXPECT_EQ(given["settings"]["overlap"], false);
  EXPECT_EQ(given["param_hash"], chosen["param_hash"]);
}

TEST_F(Train, GivesTheSameBitsWithThreadsInTheProcessesOfAJob) {
  const json threads = summary({"--steps", "4"});
  for (const Arguments& more : {Arguments{}, Arguments{"--hierarchical", "2", "--overlap"}}) {
    Arguments arguments = {"--steps", "4", "--threads-per-process", "2", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_shell(mpiexec(2, tiny(arguments)));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json hybrid = json::parse(outcome.out);
    EXPECT_EQ(hybrid["transport"], "threads+mpi");
    EXPECT_EQ(hybrid["world"], 4);
    EXPECT_EQ(hybrid["param_hash"], threads["param_hash"]);
    EXPECT_EQ(hybrid["final"], threads["final"]);
  }
  const Outcome count =
      run_shell(mpiexec(2, tiny({"--workers", "5", "--steps", "2", "--threads-per-process", "2"})));
  EXPECT_NE(count.code, 0);
  EXPECT_NE(count.err.find("2 processes, and each is 2 workers"), std::string::npos) << count.err;
  expect_error({"--threads-per-process", "2"}, "this is no MPI job");
}

TEST_F(Train, EndsTheWholeMpiJobOnAnError) {
  const Outcome count = run_shell(mpiexec(2, tiny({"--workers", "3", "--steps", "2"})));
  EXPECT_NE(count.code, 0);
  EXPECT_NE(count.err.find("this MPI job has 2 processes"), std::string::npos) << count.err;
  const Outcome diverged = run_shell(mpiexec(2, tiny({"--steps", "5", "--lr", "1e30"})));
  EXPECT_NE(diverged.code, 0);
  EXPECT_NE(diverged.err.find("NaN or Inf in the gradient of"), std::string::npos) << diverged.err;
}

TEST_F(Train, IsOneWorkerAsTheOnlyProcessOfAJob) {
  const Outcome alone = run_shell(mpiexec(1, tiny({"--steps", "1", "--json"})));
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(json::parse(alone.out)["world"], 1);
  const Outcome threads = run_shell(mpiexec(1, tiny({"--steps", "1", "--json", "--workers", "2"})));
  ASSERT_EQ(threads.code, 0) << threads.err;
  EXPECT_EQ(json::parse(threads.out)["transport"], "threads");
}

TEST_F(Train, RefusesAJobOfDifferentSettings) {
  folder_.write("other", sample_text() + "more");
  const Arguments all = tiny({"--steps", "2"});
  const auto expect_refusal = [&](const std::string& more, const std::string& part) {
    const std::string job = mpiexec(1, all);
    const Outcome outcome = run_shell(concat(job, " : -n 1 ", command_line(all), " ", more));
    EXPECT_NE(outcome.code, 0) << more;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  };
  expect_refusal("--eval-every 1", "--eval-every differs: rank(s) 1");
  const std::string job = mpiexec(1, all), text = path("text");
  std::string elsewhere = command_line(all);
  elsewhere.replace(elsewhere.find(text), text.size(), path("other"));
  const Outcome data = run_shell(concat(job, " : -n 1 ", elsewhere));
  EXPECT_NE(data.err.find("the data (--data) differs: rank(s) 1"), std::string::npos) << data.err;
  const Outcome allowed = run_shell(
      concat(job, " : -n 1 ", command_line(all), " --log-every 3 --json --out ", path("out")));
  EXPECT_EQ(allowed.code, 0) << allowed.err;
}

TEST_F(Train, RefusesAJobOfWhichOnlySomeProcessesHaveThreads) {
  const Arguments all = tiny({"--steps", "1", "--timeout", "60"});
  Arguments threads = all;
  threads.insert(threads.end(), {"--threads-per-process", "2"});
  const Outcome outcome =
      run_shell(concat("timeout 30 env ", mpiexec(1, threads), " : -n 1 ", command_line(all)));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(
      outcome.err.find("--threads-per-process differs: 2 on process 0, not given on process 1"),
      std::string::npos)
      << outcome.err;
}

// The other program begins MPI, and then sleeps.
TEST_F(Train, WaitsForTheProcessesOfAJobNoLongerThanItsTimeout) {
  const std::string job = mpiexec(1, tiny({"--steps", "1", "--timeout", "0.5"}));
  const Outcome outcome =
      run_shell(concat("timeout 30 env ", job, " : -n 1 ", PRIDE_MPI_DEATH, " late"));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("not all 2 processes of this MPI job have come within 500 ms"),
            std::string::npos)
      << outcome.err;
}
#endif

}  // namespace
}  // namespace pride::app
