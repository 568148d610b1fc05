// Exchanges that go on while steps are taken have the bits of threads on MPI processes, too; the
// golden table has those of the other methods. And a frame that one rank refuses.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the run on threads, which tests/methods/oracle_test.cpp checks against scalar code. Each
// process makes it by itself, for as many ranks as the MPI world has.
#include <gtest/gtest.h>

#include <chrono>

#include "pride/comm/mpi_comm.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "support/faulty_comm.h"
#include "support/training.h"

namespace pride {
namespace {

bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 3 && (rank + step) % 3 == 0) || tensor == 4;
}

void expect_same_as_on_threads(const std::string& method, bool overlap, std::size_t bucket_coords,
                               const std::map<std::string, std::string>& options = {}) {
  const Layout layout(
      {{"rows", {97, 8}}, {"w1", {65, 31}}, {"b1", {65}}, {"w2", {7, 65}}, {"b2", {7}}});
  const auto comm = make_mpi_communicator();
  testing::Training run{.world = comm->size(), .steps = 4};
  run.options.method = method;
  run.options.options = options;
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
  run.options.overlap = overlap;
  run.options.bucket_coords = bucket_coords;
  run.unused = unused;
  const auto mine = testing::train_rank(*comm, layout, run);
  const auto on_threads = testing::train(layout, run)[static_cast<std::size_t>(comm->rank())];
  EXPECT_EQ(mine.hash, on_threads.hash) << method << ", rank " << comm->rank();
  // of the exchange that the step adopts
  const std::size_t delay = options.contains("delay") ? std::stoul(options.at("delay")) : 0;
  for (std::size_t step = 0; step < mine.reports.size(); ++step) {
    const Cost cost = step < delay ? Cost{} : mine.costs[step - delay];
    if (cost.exact) {
      EXPECT_EQ(mine.reports[step].bytes_sent, cost.bytes()) << method << " step " << step;
    }
    if (!cost.bound) continue;  // the transport's own sum: its bytes are the transport's own
    EXPECT_EQ(mine.reports[step].bytes_sent, on_threads.reports[step].bytes_sent) << method;
  }
}

// The exchange of a step goes on while the next ones are taken.
TEST(MpiReplicas, EqualThoseOnThreadsWhileFragmentsStream) {
  for (const char* method : {"local-vote", "local-ef", "diloco"}) {
    for (const bool overlap : {false, true}) {
      expect_same_as_on_threads(method, overlap, 200,
                                {{"h", "2"}, {"fragments", "2"}, {"delay", "1"}});
    }
  }
}

// One rank refuses a frame; the others hear of it from the step, not from their deadlines.
TEST(MpiFaults, ARefusedFrameReachesAllRanksAtOnce) {
  for (const bool overlap : {false, true}) {
    auto comm = make_mpi_communicator();
    const int world = comm->size();
    if (world == 1) return;
    // behind the sends of the start-up check, of the barriers of the duplicates (one for each
    // exchange thread) and of the comparison of the parameters
    const int duplicates = overlap ? 2 : 1;
    const int first_frame = (world - 1) * (2 + duplicates);
    const bool bad = comm->rank() == 1;
    FaultyComm faulty(
        std::move(comm),
        bad ? Fault{.kind = Fault::Kind::kCorrupt, .at_send = first_frame, .byte = 20} : Fault{});
    faulty.set_timeout(std::chrono::seconds(60));
    testing::Training run{.world = world, .steps = 3};
    run.options.method = "dlion-vote";
    run.options.overlap = overlap;
    run.options.exchange_threads = duplicates;
    run.options.bucket_coords = 256;
    std::string error;
    try {
      testing::train_rank(faulty, Layout({{"w", {1000}}}), run);
    } catch (const CommError& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("frame from rank 1 has checksum"), std::string::npos) << error;
    EXPECT_EQ(faulty.happened(), bad);
  }
}

}  // namespace
}  // namespace pride
