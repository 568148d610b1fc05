// `pride bench network`: patterns between ranks, and that wrong data are counted.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>

#include "bench/network.h"
#include "pride/comm/thread_comm.h"
#include "support/faulty_comm.h"

namespace pride::app {
namespace {

TEST(NetworkBench, MeasuresSomethingOnSeveralRanksAndNothingAlone) {
  for (const int world : {1, 2, 3}) {
    run_world(world, [&](Communicator& comm) {
      const NetworkFacts facts = measure_network(comm, 0.01);
      if (world == 1) {
        EXPECT_EQ(facts.latency_s, 0);
        EXPECT_EQ(facts.goodput, 0);
      } else {
        EXPECT_GT(facts.latency_s, 0);
        EXPECT_GT(facts.goodput, 1e6);
        EXPECT_GT(facts.pair_goodput, 1e6);
      }
      EXPECT_GE(facts.message_s, 0);
    });
  }
}

TEST(NetworkBench, MeasuresOneToOneBetweenTheFirstRankAndTheLast) {
  std::vector<std::uint64_t> received(3);
  run_world(3, [&](Communicator& comm) {
    measure_network(comm, 0.001);
    received[static_cast<std::size_t>(comm.rank())] = comm.traffic().bytes_received;
  });
  EXPECT_GT(received[2], received[1]);
}

// The cells of a run on `world` threads, with a fault on rank 1.
std::vector<PatternCell> patterns_of(int world, const PatternBench& settings, Fault fault = {}) {
  std::vector<PatternCell> cells;
  run_world(world, [&](Communicator& comm) {
    FaultyComm faulty(comm.duplicate(), comm.rank() == 1 ? fault : Fault{});
    bench_patterns(faulty, settings, [&](const PatternCell& cell) {
      if (comm.rank() == 0) cells.push_back(cell);
    });
  });
  return cells;
}

TEST(PatternBench, HasARowForEachPatternAndSizeAndFindsAllRight) {
  const PatternBench settings{.sizes = {1, 1000, 100'000}, .seconds = 0.001, .least = 2};
  EXPECT_TRUE(patterns_of(1, settings).empty());
  for (const int world : {2, 3}) {
    const auto cells = patterns_of(world, settings);
    ASSERT_EQ(cells.size(), 15u);
    for (const PatternCell& cell : cells) {
      EXPECT_EQ(cell.wrong_ranks, 0) << cell.name << " of " << cell.bytes;
      EXPECT_GT(cell.times.min_s, 0) << cell.name;
      EXPECT_GE(cell.times.median_s, cell.times.min_s) << cell.name;
      EXPECT_GE(cell.times.p99_s, cell.times.median_s) << cell.name;
    }
    const auto of = [&](const std::string& name) {
      return *std::ranges::find_if(cells, [&](const auto& c) { return c.name == name; });
    };
    EXPECT_EQ(of("shift").bytes, 1u);
    EXPECT_EQ(of("all-to-all").bytes, static_cast<std::size_t>(world)) << "whole parts";
    EXPECT_EQ(of("all-reduce").bytes, 4u) << "whole numbers";
    const double others = (world - 1.0) / world;
    EXPECT_NEAR(of("all-gather").bus_bandwidth() / of("all-gather").algorithm_bandwidth(), others,
                1e-9);
    EXPECT_NEAR(of("all-reduce").bus_bandwidth() / of("all-reduce").algorithm_bandwidth(),
                2 * others, 1e-9);
  }
}

// Every message of rank 1 that is long enough has a changed byte: all its receivers are reported
// wrong.
class LyingComm final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    if (bytes.size() < 300) return ForwardingCommunicator::do_start_send(peer, tag, bytes);
    auto& copy = sent_.emplace_back(bytes.begin(), bytes.end());
    copy[bytes.size() / 2] ^= std::byte{0x55};
    return ForwardingCommunicator::do_start_send(peer, tag, copy);
  }

 private:
  std::list<std::vector<std::byte>> sent_;
};

TEST(PatternBench, CountsRanksThatReceivedSomethingElse) {
  std::map<std::string, int> wrong;
  run_world(3, [&](Communicator& comm) {
    const auto own = comm.rank() == 2
                         ? std::unique_ptr<Communicator>(new LyingComm(comm.duplicate()))
                         : comm.duplicate();
    const PatternBench settings{.sizes = {3000}, .seconds = 0.001, .least = 1};
    bench_patterns(*own, settings, [&](const PatternCell& cell) {
      if (comm.rank() == 0) wrong[cell.name] = cell.wrong_ranks;
    });
  });
  EXPECT_EQ(wrong["ping-pong"], 1);
  EXPECT_EQ(wrong["shift"], 1);
  EXPECT_EQ(wrong["all-to-all"], 2);
  EXPECT_EQ(wrong["all-gather"], 2);
  EXPECT_GE(wrong["all-reduce"], 1);
}

}  // namespace
}  // namespace pride::app
