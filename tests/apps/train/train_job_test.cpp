// `pride train` as a job of several processes, MPI or c10d: equal bits, and an end for all.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

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

#ifdef PRIDE_RANK_LAUNCHER
std::string launch(int n, const Arguments& arguments) {
  return concat(PRIDE_RANK_LAUNCHER, " ", n, " ", command_line(arguments));
}

TEST_F(Train, GivesTheSameBitsOverC10d) {
  for (const std::string method : {"dlion-vote", "adamw"}) {
    SCOPED_TRACE(method);
    const Outcome outcome =
        run_shell(launch(4, tiny({"--steps", "4", "--method", method, "--json"})));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same(json::parse(outcome.out), "c10d", summary({"--steps", "4", "--method", method}));
  }
}

TEST_F(Train, EndsTheWholeC10dJobOnAnError) {
  const Outcome count = run_shell(launch(2, tiny({"--workers", "3", "--steps", "2"})));
  EXPECT_NE(count.code, 0);
  expect_contains(count.err, "this torchrun job has 2 processes");
  const Outcome diverged = run_shell(launch(2, tiny({"--steps", "5", "--lr", "1e30"})));
  EXPECT_NE(diverged.code, 0);
  expect_contains(diverged.err, "NaN or Inf in the gradient of");
}

// Rank 0 speaks for all in other cases; here nobody would.
TEST_F(Train, SurvivorsOfRank0SayThatItIsGone) {
  for (const char* signal : {"KILL", "STOP"}) {
    const std::string out = path(signal);
    const std::string job =
        launch(3, tiny({"--steps", "1000000", "--timeout", "3", "--out", out, "--overwrite"}));
    const Outcome outcome = run_shell(concat("(", job, " & for i in $(seq 300); do [ -s ", out,
                                             "/metrics.jsonl ] && break; sleep 0.1; "
                                             "done; for p in $(pgrep -f ",
                                             out,
                                             "); do tr '\\0' '\\n' </proc/$p/environ 2>/dev/null | "
                                             "grep -qx RANK=0 && kill -",
                                             signal, " $p; done; wait $!)"));
    EXPECT_NE(outcome.code, 0);
    expect_contains(outcome.err, "rank 0");
    expect_contains(outcome.err, "pride: error: rank ");
  }
}

TEST_F(Train, RefusesThreadsInAJobOfSeveralProcesses) {
  const Outcome outcome = run_shell(launch(2, tiny({"--steps", "1", "--transport", "threads"})));
  EXPECT_NE(outcome.code, 0);
  expect_contains(outcome.err, "a launcher started 2 processes, and each would work alone");
}

TEST_F(Train, WaitsForTorchrunsRanksNoLongerThanItsTimeout) {
  const std::string place = concat(
      "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", 20000 + getpid() % 10000, " ");
  const Outcome alone = run_shell(
      concat("timeout 30 env ", place, command_line(tiny({"--steps", "1", "--timeout", "0.5"}))));
  EXPECT_EQ(alone.code, 1) << alone.err;
  expect_contains(alone.err, "the ranks do not meet at");
}

TEST_F(Train, UsesTheTransportThatTheFlagNames) {
  const Outcome threads =
      run_shell(launch(1, tiny({"--steps", "1", "--json", "--transport", "threads"})));
  ASSERT_EQ(threads.code, 0) << threads.err;
  EXPECT_EQ(json::parse(threads.out)["transport"], "threads");
  const Outcome alone = run_shell(command_line(tiny({"--steps", "1", "--transport", "c10d"})));
  EXPECT_NE(alone.code, 0);
  expect_contains(alone.err, "RANK, WORLD_SIZE");
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
    SCOPED_TRACE(method);
    const Outcome outcome =
        run_shell(mpiexec(4, tiny({"--steps", "4", "--method", method, "--json"})));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same(json::parse(outcome.out), "mpi", summary({"--steps", "4", "--method", method}));
  }
}

TEST_F(Train, ChoosesTheBucketsFromTheNetworkBetweenProcesses) {
  const auto summary_of = [&](Arguments more) {
    more.insert(more.end(), {"--steps", "1", "--json"});
    return json_of(run_shell(mpiexec(2, tiny(more))));
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
    expect_same(json::parse(outcome.out), "threads+mpi", threads);
  }
  const Outcome count =
      run_shell(mpiexec(2, tiny({"--workers", "5", "--steps", "2", "--threads-per-process", "2"})));
  EXPECT_NE(count.code, 0);
  expect_contains(count.err, "2 processes, and each is 2 workers");
  expect_error({"--threads-per-process", "2"}, "this is no MPI job");
}

TEST_F(Train, EndsTheWholeMpiJobOnAnError) {
  const Outcome count = run_shell(mpiexec(2, tiny({"--workers", "3", "--steps", "2"})));
  EXPECT_NE(count.code, 0);
  expect_contains(count.err, "this MPI job has 2 processes");
  const Outcome diverged = run_shell(mpiexec(2, tiny({"--steps", "5", "--lr", "1e30"})));
  EXPECT_NE(diverged.code, 0);
  expect_contains(diverged.err, "NaN or Inf in the gradient of");
}

TEST_F(Train, IsOneWorkerAsTheOnlyProcessOfAJob) {
  const Outcome alone = run_shell(mpiexec(1, tiny({"--steps", "1", "--json"})));
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(json::parse(alone.out)["world"], 1);
  const Outcome threads = run_shell(mpiexec(1, tiny({"--steps", "1", "--json", "--workers", "2"})));
  ASSERT_EQ(threads.code, 0) << threads.err;
  EXPECT_EQ(json::parse(threads.out)["transport"], "threads");
  // threads contradict the requested transport
  const Outcome mpi =
      run_shell(command_line(tiny({"--steps", "1", "--transport", "mpi", "--workers", "2"})));
  EXPECT_NE(mpi.code, 0);
  expect_contains(mpi.err, "this is one process, so one worker; start 2 with mpirun");
}

TEST_F(Train, RefusesAJobOfDifferentSettings) {
  folder_.write("other", test::sample_text() + "more");
  const Arguments all = tiny({"--steps", "2"});
  const auto expect_refusal = [&](const std::string& more, const std::string& part) {
    const std::string job = mpiexec(1, all);
    const Outcome outcome = run_shell(concat(job, " : -n 1 ", command_line(all), " ", more));
    EXPECT_NE(outcome.code, 0) << more;
    expect_contains(outcome.err, part);
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

TEST_F(Train, RefusesAJobOfWhichOnlySomeProcessesHaveThreads) {
  const Arguments all = tiny({"--steps", "1", "--timeout", "60"});
  Arguments threads = all;
  threads.insert(threads.end(), {"--threads-per-process", "2"});
  const Outcome outcome =
      run_shell(concat("timeout 30 env ", mpiexec(1, threads), " : -n 1 ", command_line(all)));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
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
  expect_contains(outcome.err, "not all 2 processes of this MPI job have come within 500 ms");
}
#endif

}  // namespace
}  // namespace pride::app
