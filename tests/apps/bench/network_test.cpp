// `pride bench network`: which ranks are measured, and that wrong data are counted.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>

#include "pride/comm/thread_comm.h"
#include "program/bench/network.h"
#include "support/faulty_comm.h"

namespace pride::app {
namespace {

TEST(NetworkBench, MeasuresOneToOneBetweenTheFirstRankAndTheLast) {
  std::vector<std::uint64_t> received(3);
  run_world(3, [&](Communicator& comm) {
    measure_network(comm, 0.001);
    received[static_cast<std::size_t>(comm.rank())] = comm.traffic().bytes_received;
  });
  EXPECT_GT(received[2], received[1]);
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
