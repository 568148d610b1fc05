// mpi_comm: the transport contract under mpirun, with whole messages and with small chunks.
// SPDX-License-Identifier: Apache-2.0
#include "pride/comm/mpi_comm.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <tuple>

#include "comm/contract.h"
#include "comm/mpi_chunk.h"
#include "comm/mpi_family.h"
#include "pride/error.h"

namespace pride {
namespace {

using contract::Check;

class MpiContract : public testing::TestWithParam<std::tuple<Check, std::size_t>> {};

TEST_P(MpiContract, Holds) {
  const auto& [check, chunk] = GetParam();
  mpi::set_chunk_limit(chunk);
  const auto comm = make_mpi_communicator();
  EXPECT_EQ(comm->transport(), "mpi");
  comm->set_timeout(std::chrono::seconds(100));
  check.run(*comm);
}

INSTANTIATE_TEST_SUITE_P(All, MpiContract,
                         testing::Combine(testing::ValuesIn(contract::kChecks),
                                          testing::Values(mpi::kDefaultChunk,
                                                          contract::kSmallChunk)),
                         [](const auto& info) {
                           const bool whole = std::get<1>(info.param) == mpi::kDefaultChunk;
                           return std::string(std::get<0>(info.param).name) +
                                  (whole ? "_Whole" : "_Chunks");
                         });

TEST(MpiComm, LeavesTheCallersCommunicatorAlone) {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL, after = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  const auto comm = make_mpi_communicator();
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  EXPECT_EQ(before, after);
  comm->fail("a failed world of pride");
  int sum = 0;
  const int one = 1;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  EXPECT_EQ(sum, comm->size());
  MPI_Errhandler_free(&before);
  MPI_Errhandler_free(&after);
}

TEST(MpiComm, WorksOverAPartOfTheWorld) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  const auto comm = make_mpi_communicator(half);
  MPI_Comm_free(&half);  // pride has its own by now
  contract::all_to_all_moves_slices(*comm);
}

TEST(MpiComm, RefusesWhatIsNoCommunicator) {
  EXPECT_THROW(make_mpi_communicator(MPI_COMM_NULL), InvalidArgument);
  EXPECT_THROW(mpi::set_chunk_limit(0), InvalidArgument);
  EXPECT_THROW(mpi::set_chunk_limit(std::size_t{1} << 31), InvalidArgument);
}

TEST(MpiComm, FailedWorldsDoNotHarmLaterOnes) {
  for (int round = 0; round < 5; ++round) {
    const auto bad = make_mpi_communicator();
    contract::fail_reaches_waiters_duplicates_and_splits(*bad);
    const auto good = make_mpi_communicator();
    contract::gather_int(*good, round);
  }
}

// Waiting ranks yield as soon as they have less than two cores each.
TEST(MpiFamily, IsCrowdedByTheProcessesHere) {
  int processes = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  EXPECT_EQ(mpi::MpiFamily(MPI_COMM_WORLD).crowded(),
            2L * processes > sysconf(_SC_NPROCESSORS_ONLN));
}

TEST(MpiEnvironment, JoinsAnMpiThatSomebodyElseBegan) {
  {
    const MpiEnvironment environment;
    EXPECT_TRUE(environment.thread_multiple());
  }
  int over = 1;
  MPI_Finalized(&over);
  EXPECT_FALSE(over);
  EXPECT_TRUE(launched_by_mpi());
}

}  // namespace
}  // namespace pride
