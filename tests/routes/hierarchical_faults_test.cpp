// The hierarchical route over a faulty network, and with faulty peers.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>

#include "codecs/counts.h"
#include "codecs/signs.h"
#include "methods/sign_counts.h"
#include "pride/error.h"
#include "support/edited_frame.h"

namespace pride::hierarchical_faults_test {
namespace {

using testing::put;
using testing::Training;

// --- A faulty network, and faulty peers. ---------------------------------------------------------

// Three steps on 2 nodes of 2, with a fault on rank 1; the error of each rank.
std::vector<std::string> errors_with(const std::string& method, Fault fault) {
  const Layout layout({{"w", {1000}}});
  Training run{.world = 4, .steps = 3};
  run.options.method = method;
  run.options.nodes = Nodes::of_size(4, 2);
  std::vector<std::string> errors(4);
  auto world = make_thread_world(4);
  std::latch done(4);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 4; ++r) {
    threads.emplace_back([&, r, inner = std::move(world[r])]() mutable {
      FaultyComm faulty(std::move(inner), r == 1 ? fault : Fault{});
      faulty.set_timeout(std::chrono::seconds(1));
      try {
        testing::train_rank(faulty, layout, run);
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
      if (r == 1) {
        EXPECT_TRUE(faulty.happened()) << "the fault was never reached";
      }
      done.arrive_and_wait();
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// Sends of rank 1 in a step: signs about two shards to rank 0, counts to rank 3, its result to
// rank 3, its own result and that of rank 3 to rank 0.
constexpr int kSendsOfAStep = 6;

// Counts a rank's sends before its first frame: the optimizer's start.
class StartCounter final : public ForwardingCommunicator {
 public:
  StartCounter(std::unique_ptr<Communicator> inner, std::shared_ptr<std::pair<int, bool>> seen)
      : ForwardingCommunicator(std::move(inner)), seen_(std::move(seen)) {}

 protected:
  std::uint64_t do_start_send(int peer, int tag, std::span<const std::byte> bytes) override {
    const bool frame =
        bytes.size() >= kHeaderBytes && testing::number_at(bytes, 0, 4) == kFrameMagic;
    seen_->second |= frame;
    seen_->first += seen_->second ? 0 : 1;
    return ForwardingCommunicator::do_start_send(peer, tag, bytes);
  }
  std::unique_ptr<Communicator> do_group(std::span<const int> members) override {
    return std::unique_ptr<Communicator>(
        new StartCounter(ForwardingCommunicator::do_group(members), seen_));
  }

 private:
  std::shared_ptr<std::pair<int, bool>> seen_;  // sends so far, and whether a frame was among them
};

// Sends of rank 1 before its first step.
int sends_before_steps() {
  const auto seen = std::make_shared<std::pair<int, bool>>();
  auto world = make_thread_world(4);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 4; ++r) {
    threads.emplace_back([&, r, inner = std::move(world[r])]() mutable {
      StartCounter comm(std::move(inner), r == 1 ? seen : std::make_shared<std::pair<int, bool>>());
      Training run{.world = 4, .steps = 1};
      run.options.nodes = Nodes::of_size(4, 2);
      testing::train_rank(comm, Layout({{"w", {1000}}}), run);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(seen->second);
  return seen->first;
}

TEST(HierarchicalFaults, ACorruptedFrameIsRefusedByNameOnAllRanks) {
  const int start = sends_before_steps();
  for (const std::string method : {"dlion-vote", "dlion-avg"}) {
    for (int k = 0; k < kSendsOfAStep; ++k) {
      const auto errors =
          errors_with(method, {.kind = Fault::Kind::kCorrupt, .at_send = start + k, .byte = 20});
      const bool passed_on =
          errors[0].find("forwarded by rank 1: the frame from rank 3 has") != std::string::npos;
      EXPECT_EQ(passed_on, k >= 4 && errors[0].find("frame from rank 1") == std::string::npos);
      for (const std::string& e : errors) {
        EXPECT_TRUE(passed_on || e.find("frame from rank 1 has") != std::string::npos)
            << method << ", send " << k << ": '" << e << "'";
        EXPECT_NE(e.find("bucket 0"), std::string::npos) << "'" << e << "'";
      }
    }
  }
}

// Another frame may arrive in place of the lost one, or none before the deadline.
TEST(HierarchicalFaults, ALostFrameIsAnErrorThatNamesItsSenderOnAllRanks) {
  const int start = sends_before_steps();
  for (int k = 0; k < kSendsOfAStep; ++k) {
    const auto errors =
        errors_with("dlion-vote", {.kind = Fault::Kind::kDrop, .at_send = start + k});
    for (const std::string& e : errors) {
      EXPECT_NE(e.find("rank 1"), std::string::npos) << "send " << k << ": '" << e << "'";
      EXPECT_NE(e.find("bucket 0"), std::string::npos) << "'" << e << "'";
    }
  }
}

// Of a run on 2 nodes of 2.
std::string error_with(Codec codec, int from, const testing::Edit& edit) {
  Training run{.world = 4};
  run.options.method = "dlion-vote";
  run.options.nodes = Nodes::of_size(4, 2);
  return testing::error_with(run, codec, from, edit);
}

TEST(HierarchicalPeers, AreRefusedWhenTheirCountsMakeNoSense) {
  // counts of two ranks a node: packed, base 3; rank 2 is the same-local-rank peer of rank 0
  const Codec counts = count_frames(2, CountForm::kPacked).codec;
  EXPECT_NE(error_with(counts, 2, put(kHeaderBytes, 2, 3))
                .find("the frame from rank 2 counts 3 of 2 ranks as users of tensor 0"),
            std::string::npos);
  EXPECT_NE(error_with(counts, 2, put(kHeaderBytes, 2, 0))
                .find("the frame from rank 2 counts more than the 0 ranks that use tensor 0"),
            std::string::npos);
  EXPECT_NE(error_with(counts, 2, put(14, 2, 1))
                .find("the frame from rank 2 has vote weight 1, this rank expects 2"),
            std::string::npos);
}

TEST(HierarchicalPeers, AreRefusedWhenWhatTheyPassOnMakesNoSense) {
  const auto forget = [](std::span<std::byte> frame) {
    testing::put_number(frame, kHeaderBytes, 1, 1);
    std::ranges::fill(frame.subspan(kHeaderBytes + 8), std::byte{0});
  };
  // rank 1 forwards the frame of rank 3, second after its own
  EXPECT_NE(error_with(Codec::kVote, 1, forget).find("the frame from rank 1 marks tensor"),
            std::string::npos);
}

// A node's counts in the padding of a tensor give no vote, or the server's result would be refused
// instead.
TEST(HierarchicalPeers, CannotVoteBeyondTheEndOfATensor) {
  const Layout layout({{"w", {70}}, {"v", {10}}});
  const Bucket bucket = make_buckets(layout, 1 << 20, 1)[0];
  const Shard& shard = bucket.shards[0];
  const FrameKind counts = count_frames(2, CountForm::kPacked);
  ByteBuffer partial;
  partial.resize(counts.bytes(shard));
  std::ranges::fill(partial.span(), std::byte{0});
  const CountView view(partial.span().data(), shard, 2, CountForm::kPacked);
  ASSERT_EQ(view.n_groups, 0u);
  std::ranges::fill(view.users, std::uint16_t{2});
  // both ranks + everywhere, padding included
  std::ranges::fill(view.planes.subspan(view.plane_words), ~0ULL);

  const std::vector<Frame> frames(2, Frame{partial.span()});
  const std::string where = "here";
  const std::vector<char> unused(2, 0);
  const StepScalars scalars;
  const FlatBuffer x(192);
  for (const methods::Tie tie : {methods::Tie::kHash, methods::Tie::kZero}) {
    const bool ternary = tie == methods::Tie::kZero;
    const FrameKind votes = vote_frames(ternary);
    ByteBuffer vote;
    vote.resize(votes.bytes(shard));
    SharedContext shared;
    shared.voters = 4;
    shared.groups = std::span(&scalars, 1);
    shared.x = {.flat = ConstFloats(std::as_const(x).span())};
    methods::SignCounts(shard, {FrameRole::kPartial, frames, where}, 4, 2)
        .write_vote(shared, tie, vote.span());
    EXPECT_NO_THROW(check_payload(votes, {{vote.span()}, shard, 1, where, unused}, true));
    const VoteView result(std::as_const(vote).span().data(), shard, ternary);
    EXPECT_EQ(result.positive[0], ~0ULL);
    EXPECT_EQ(result.positive[1], (1ULL << 6) - 1);
    EXPECT_EQ(result.positive[2], (1ULL << 10) - 1);
  }
}

}  // namespace
}  // namespace pride::hierarchical_faults_test
