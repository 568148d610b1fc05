// `pride train` as a job of several processes, MPI or c10d: equal bits, and an end for all.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "train_names.h"
#include "train_program.h"

namespace pride::app {
namespace {

// Expects that a job ran over `transport`, with the result of threads with the same settings.
void expect_same(const json& job, const char* transport, const json& threads) {
  EXPECT_EQ(job["transport"], transport);
  EXPECT_EQ(job["world"], threads["world"]);
  EXPECT_EQ(job["param_hash"], threads["param_hash"]);
  EXPECT_EQ(job["final"], threads["final"]);
}

// A job that ends with an error, said by one of its ranks.
[[maybe_unused]] void expect_end(const std::string& job, const std::string& part, int code = 0) {
  const Outcome outcome = run_shell(job);
  EXPECT_TRUE(code == 0 ? outcome.code != 0 : outcome.code == code) << outcome.err;
  expect_contains(outcome.err, part);
}

#ifdef PRIDE_RANK_LAUNCHER
std::string launch(int n, const Arguments& arguments) {
  return concat(PRIDE_RANK_LAUNCHER, " ", n, " ", command_line(arguments));
}

TEST_F(Train, GivesTheSameBitsOverC10d) {
  const json job = json_of(run_shell(launch(4, tiny({"--steps", "4", "--json"}))));
  expect_same(job, "c10d", summary({"--steps", "4"}));
}

TEST_F(Train, GivesTheSameBitsOfGroupsOverC10d) {
  const Arguments run = {"--steps", "4", "--groups", "embeddings,vectors: adamw"};
  const json job = json_of(run_shell(launch(3, tiny(plus(run, {"--json"})))));
  expect_same(job, "c10d", summary(plus(run, {"--workers", "3"})));
  EXPECT_EQ(job["sections"].size(), 2U);
}

TEST_F(Train, TakesATorchrunThatSrunStartedForTorchrun) {
  const std::string job = launch(2, tiny({"--steps", "1", "--json"}));
  EXPECT_EQ(json_of(run_shell("PMIX_RANK=0 TORCHELASTIC_RUN_ID=1 " + job))["transport"], "c10d");
}

TEST_F(Train, EndsTheWholeC10dJobOnAnError) {
  expect_end(launch(2, tiny({"--workers", "3", "--steps", "2"})),
             "this torchrun job has 2 processes");
  expect_end(launch(2, tiny({"--steps", "5", "--lr", "1e30"})), "NaN or Inf in the gradient of");
}

// In other cases rank 0 prints the error; here it cannot.
TEST_F(Train, SurvivorsOfRank0SayThatItIsGone) {
  for (const char* signal : {"KILL", "STOP"}) {
    const std::string out = path(signal);
    const std::string job = launch(3, tiny({"--steps", "1000000", "--timeout", "3", "--out", out}));
    const Outcome outcome = run_and(
        job, signal,
        concat("for p in $(pgrep -f ", out, "); do tr '\\0' '\\n' </proc/$p/environ 2>/dev/null | ",
               "grep -qx RANK=0 && kill -", signal, " $p; done"));
    EXPECT_NE(outcome.code, 0);
    expect_contains(outcome.err, "rank 0");
    expect_contains(outcome.err, "pride: error: rank ");
  }
}

TEST_F(Train, RefusesThreadsInAJobOfSeveralProcesses) {
  expect_end(launch(2, tiny({"--steps", "1", "--transport", "threads"})),
             "a launcher started 2 processes, and each would run alone");
}

TEST_F(Train, WaitsForTorchrunsRanksNoLongerThanItsTimeout) {
  const std::string place = concat(
      "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", 20000 + getpid() % 10000, " ");
  expect_end(
      concat("timeout 30 env ", place, command_line(tiny({"--steps", "1", "--timeout", "0.5"}))),
      "the ranks cannot connect at", 1);
}

TEST_F(Train, UsesTheTransportThatTheFlagNames) {
  const Arguments threads = {"--steps", "1", "--json", "--transport", "threads"};
  EXPECT_EQ(json_of(run_shell(launch(1, tiny(threads))))["transport"], "threads");
  expect_end(command_line(tiny({"--steps", "1", "--transport", "c10d"})), "RANK, WORLD_SIZE");
}
#endif

#ifdef PRIDE_MPIEXEC
std::string mpiexec(int n, const Arguments& arguments) {
  return concat(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 "
      "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe ",
      PRIDE_MPIEXEC, " -n ", n, " ", command_line(arguments));
}

TEST_F(Train, GivesTheSameBitsUnderMpi) {
  const json job = json_of(run_shell(mpiexec(4, tiny({"--steps", "4", "--json"}))));
  expect_same(job, "mpi", summary({"--steps", "4"}));
}

TEST_F(Train, GivesTheSameBitsOfGroupsUnderMpi) {
  const Arguments run = {"--steps", "4", "--groups", "embeddings,vectors: adamw"};
  const json job = json_of(run_shell(mpiexec(3, tiny(plus(run, {"--json"})))));
  expect_same(job, "mpi", summary(plus(run, {"--workers", "3"})));
  EXPECT_EQ(job["sections"].size(), 2U);
}

TEST_F(Train, ChoosesTheBucketsFromTheNetworkBetweenProcesses) {
  const auto summary_of = [&](const Arguments& more) {
    return json_of(run_shell(mpiexec(2, tiny(plus(more, {"--steps", "1", "--json"})))));
  };
  const json chosen = summary_of({});
  EXPECT_EQ(chosen["routes"].front(), 1) << "too small to cut: " << chosen["routes"];
  EXPECT_EQ(chosen["settings"]["overlap"], true);
  const json given = summary_of({"--bucket-mb", "4", "--no-overlap"});
  EXPECT_EQ(given["bucket_coords"], 1 << 20);
  EXPECT_EQ(given["settings"]["overlap"], false);
  EXPECT_EQ(given["param_hash"], chosen["param_hash"]);
}

TEST_F(Train, EndsTheWholeMpiJobOnAnError) {
  expect_end(mpiexec(2, tiny({"--workers", "3", "--steps", "2"})), "this MPI job has 2 processes");
  expect_end(mpiexec(2, tiny({"--steps", "5", "--lr", "1e30"})), "NaN or Inf in the gradient of");
}

TEST_F(Train, IsOneWorkerAsTheOnlyProcessOfAJob) {
  EXPECT_EQ(json_of(run_shell(mpiexec(1, tiny({"--steps", "1", "--json"}))))["world"], 1);
  const Arguments threads = {"--steps", "1", "--json", "--workers", "2"};
  EXPECT_EQ(json_of(run_shell(mpiexec(1, tiny(threads))))["transport"], "threads");
  // threads contradict the requested transport
  expect_end(command_line(tiny({"--steps", "1", "--transport", "mpi", "--workers", "2"})),
             "this is one process, so one worker; start 2 with mpirun");
}

TEST_F(Train, RefusesAJobOfDifferentSettings) {
  folder_.write("other", test::sample_text() + "more");
  const Arguments all = tiny({"--steps", "2"});
  const auto expect_refusal = [&](const std::string& more, const std::string& part) {
    const std::string job = mpiexec(1, all);
    expect_end(concat(job, " : -n 1 ", command_line(all), " ", more), part);
  };
  expect_refusal("--eval-every 1", "--eval-every differs: rank(s) 1");
  const std::string job = mpiexec(1, all), text = path("text");
  std::string elsewhere = command_line(all);
  elsewhere.replace(elsewhere.find(text), text.size(), path("other"));
  const Outcome data = run_shell(concat(job, " : -n 1 ", elsewhere));
  expect_contains(data.err, "the data (--data) differs: rank(s) 1");
  const Outcome allowed = run_shell(
      concat(job, " : -n 1 ", command_line(all), " --log-every 3 --json --out ", path("out")));
  EXPECT_EQ(allowed.code, 0) << allowed.err;
}

// The other program begins MPI, and then sleeps.
TEST_F(Train, WaitsForTheProcessesOfAJobNoLongerThanItsTimeout) {
  const std::string job = mpiexec(1, tiny({"--steps", "1", "--timeout", "0.5"}));
  expect_end(concat("timeout 30 env ", job, " : -n 1 ", PRIDE_MPI_DEATH, " late"),
             "not all 2 processes of this MPI job have started within 500 ms", 1);
}
#endif

}  // namespace
}  // namespace pride::app
