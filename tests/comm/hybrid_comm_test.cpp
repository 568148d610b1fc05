// hybrid_comm: the transport contract under mpirun with several threads on each process, and the
// optimizer on it, also with the hierarchical route.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/hybrid_comm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/contract.h"
#include "comm/mpi_chunk.h"
#include "comm/mpi_family.h"
#include "pride/error.h"
#include "pride/nodes.h"
#include "support/training.h"

namespace pride {
namespace {

using contract::Check;

int processes() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int process() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

class HybridContract : public ::testing::TestWithParam<std::tuple<Check, int, std::size_t>> {};

TEST_P(HybridContract, Holds) {
  const auto& [check, threads, chunk] = GetParam();
  mpi::set_chunk_limit(chunk);
  std::atomic<int> ran{0};
  try {
    run_hybrid_world(threads, [&, run = check.run, threads = threads](Communicator& comm) {
      EXPECT_EQ(comm.transport(), "threads+mpi");
      EXPECT_EQ(comm.size(), threads * processes());
      EXPECT_EQ(comm.rank() / threads, process());
      comm.set_timeout(std::chrono::seconds(100));
      run(comm);
      ++ran;
    });
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
  EXPECT_EQ(ran, threads);
  mpi::set_chunk_limit(mpi::kDefaultChunk);
  MPI_Barrier(MPI_COMM_WORLD);  // notices of a failed world must not match receives of the next
}

INSTANTIATE_TEST_SUITE_P(
    All, HybridContract,
    ::testing::Combine(::testing::ValuesIn(contract::kChecks), ::testing::Values(1, 2, 3),
                       ::testing::Values(mpi::kDefaultChunk, contract::kSmallChunk)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_T" +
             std::to_string(std::get<1>(info.param)) +
             (std::get<2>(info.param) == mpi::kDefaultChunk ? "_Whole" : "_Chunks");
    });

TEST(HybridWorld, RefusesOtherNumbersOfThreadsOnAllProcesses) {
  const auto nothing = [](Communicator&) {};
  EXPECT_THROW(run_hybrid_world(0, nothing), InvalidArgument);
  EXPECT_THROW(run_hybrid_world(1025, nothing), InvalidArgument);
  if (processes() == 1) return;
  EXPECT_THROW(run_hybrid_world(process() == 0 ? 2 : 1, nothing), InvalidArgument);
}

TEST(HybridWorld, RethrowsARanksOwnErrorAndNamesItOnTheOthers) {
  const int last = 2 * processes() - 1;
  std::string error;
  try {
    run_hybrid_world(2, [&](Communicator& comm) {
      comm.set_timeout(std::chrono::seconds(60));
      if (comm.rank() == last) throw std::runtime_error("out of images");
      contract::meet_until_error(comm);
    });
  } catch (const CommError& e) {
    error = e.what();
    contract::expect_contains(error, concat("rank ", last, ": out of images"));
  } catch (const std::runtime_error& e) {
    error = e.what();
    EXPECT_EQ(process(), processes() - 1);
    EXPECT_EQ(error, "out of images");
  }
  EXPECT_NE(error, "");
  MPI_Barrier(MPI_COMM_WORLD);
}

// Two threads of each rank make communicators at the same time, without receiving each other's
// messages: of the same ranks, of ranks that overlap in part, and of one.
TEST(HybridWorld, MakesGroupsOnTwoThreadsAtATime) {
  run_hybrid_world(4, [](Communicator& comm) {
    const auto other = comm.duplicate();
    const auto work = [](Communicator& from, int width, int salt) {
      for (int round = 0; round < 100; ++round) {
        const auto copy = from.duplicate();
        contract::gather_int(*copy, salt + round);
        const auto part = from.split(from.rank() / width, 0);
        contract::gather_int(*part, salt - round);
        const auto alone = from.split(from.rank(), 0);
        EXPECT_EQ(alone->size(), 1);
      }
    };
    const std::jthread second([&] { work(*other, 3, 1000); });
    work(comm, 2, 2000);
  });
}

// 64 threads leave few contexts: 2^31 / (2048 * 64^2) under Open MPI. One of each process works.
constexpr int kManyThreads = 64;
constexpr int kMoreThanThereAre = 300;

std::unique_ptr<Communicator> firsts_of_processes(Communicator& comm) {
  return comm.split(comm.rank() % kManyThreads, comm.rank());
}

TEST(HybridWorld, GivesTheNumbersOfCommunicatorsBack) {
  run_hybrid_world(kManyThreads, [](Communicator& comm) {
    const auto firsts = firsts_of_processes(comm);
    if (comm.rank() % kManyThreads != 0) return;
    std::unique_ptr<Communicator> kept;
    for (int round = 0; round < kMoreThanThereAre; ++round) {
      auto copy = firsts->duplicate();
      contract::gather_int(*copy, round);
      if (round % 10 == 0) kept = std::move(copy);  // contexts are freed in any order
    }
  });
}

TEST(HybridWorld, NamesTheLimitOfCommunicators) {
  void* highest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&highest), &found);
  if (found == 0 || *static_cast<int*>(highest) / (2048 * kManyThreads * kManyThreads) > 1000) {
    GTEST_SKIP() << "this MPI has more tags than can be used up here";
  }
  std::string error;
  try {
    run_hybrid_world(kManyThreads, [](Communicator& comm) {
      const auto firsts = firsts_of_processes(comm);
      std::vector<std::unique_ptr<Communicator>> kept;
      while (comm.rank() % kManyThreads == 0) kept.push_back(firsts->duplicate());
    });
  } catch (const CommError& e) {
    error = e.what();
  }
  contract::expect_contains(error, "communicators at a time with 64 threads on each process");
  MPI_Barrier(MPI_COMM_WORLD);
}

// The last method's exchanges go on while steps are taken.
TEST(HybridReplicas, EqualThoseOnThreadsInOneLevelAndInTwo) {
  const Layout layout({{"rows", {97, 8}}, {"w1", {65, 31}}, {"b1", {65}}});
  for (const std::string method :
       {"dlion-vote", "dlion-avg", "local-vote:h=2,fragments=2,delay=1"}) {
    for (const int threads : {2, 3}) {
      pride::testing::Training run{.world = threads * processes(), .steps = 4};
      pride::testing::set_method(run.options, method);
      run.options.bucket_coords = 500;
      const std::uint64_t expected = pride::testing::train(layout, run)[0].hash;
      for (const bool hierarchical : {false, true}) {
        for (const bool overlap : {false, true}) {
          run.options.overlap = overlap;
          if (hierarchical) run.options.nodes = Nodes::of_size(run.world, threads);
          run_hybrid_world(threads, [&](Communicator& comm) {
            EXPECT_EQ(pride::testing::train_rank(comm, layout, run).hash, expected)
                << method << ", rank " << comm.rank() << ", hierarchical: " << hierarchical;
          });
        }
      }
    }
  }
}

// Waiting threads yield as soon as workers, not processes, have less than two cores each.
TEST(MpiFamily, IsCrowdedByTheWorkersOfAllProcessesHere) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  for (const int workers : {1, 2, static_cast<int>(cores / 2), static_cast<int>(cores)}) {
    const mpi::MpiFamily family(MPI_COMM_WORLD, std::max(1, workers));
    EXPECT_EQ(family.crowded(), 2L * std::max(1, workers) * processes() > cores) << workers;
  }
  EXPECT_TRUE(mpi::MpiFamily(MPI_COMM_WORLD, static_cast<int>(cores)).crowded());
}

}  // namespace
}  // namespace pride
