// Optimizers with a Coordinator, on threads. Oracles: an optimizer that replays the journal; the
// sizes of messages by protobuf's rules, written out.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <thread>

#include "coord/work_pool.h"
#include "direct_client.h"
#include "optimizer/run_values.h"
#include "pride/comm/thread_comm.h"
#include "pride/run_worker.h"
#include "pride/serving.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::coord::test {
namespace {

using pride::testing::fill;
using pride::testing::gradient;
using pride::testing::initial;

OptimizerOptions options_of(const std::string& method) {
  OptimizerOptions options;
  options.method = method;
  options.groups.resize(1);
  options.groups[0].lr = 0.01;
  options.bucket_coords = 1000;
  options.seed = 3;
  return options;
}

const Layout& layout() {
  static const Layout all(pride::testing::kTensors);
  return all;
}

class Worker {
 public:
  Worker(int key, OptimizerOptions options, std::shared_ptr<CoordinatorClient> client,
         float shift = 0)
      : key_(key), optimizer_(std::move(client), layout(), std::move(options)) {
    fill(layout(), params_, [&](std::size_t t, std::size_t i) { return initial(t, i) + shift; });
    optimizer_.join(params_.span());
  }
  void steps(std::int64_t until) {
    while (optimizer_.steps_done() < until) {
      const std::int64_t at = optimizer_.steps_done();
      fill(layout(), grads_,
           [&](std::size_t t, std::size_t i) { return gradient(key_, at, t, i); });
      optimizer_.step(params_.span(), grads_.span());
    }
  }
  std::uint64_t hash() {
    optimizer_.to_common(params_.span());
    return param_hash(layout(), params_.span());
  }

 private:
  int key_;
  RunWorker optimizer_;
  FlatBuffer params_{layout().flat_size()}, grads_{layout().flat_size()};
};

// A coordinator that serves on a thread of its own, in real time.
class Server {
 public:
  explicit Server(CoordinatorOptions options) {
    options.folder = folder_.path() / "journal";
    coordinator_ = std::make_unique<Coordinator>(
        options, make_serving, [this](std::function<void()> task) { tasks_->add(std::move(task)); },
        seen, std::chrono::steady_clock::now());
  }
  // What was put off is done first.
  ~Server() {
    tasks_.reset();
    coordinator_.reset();
  }
  std::shared_ptr<DirectClient> client(int number) {
    return std::make_shared<DirectClient>(*coordinator_, concat("worker-", number));
  }
  Status status() { return coordinator_->status(std::chrono::steady_clock::now()); }
  std::filesystem::path folder() const { return folder_.path() / "journal"; }

  Seen seen;

 private:
  app::test::TempFolder folder_;
  std::unique_ptr<WorkPool> tasks_ = std::make_unique<WorkPool>(1);
  std::unique_ptr<Coordinator> coordinator_;
};

void at_once(int n, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
}

CoordinatorOptions four_with_shadow() {
  CoordinatorOptions options;
  options.quorum.min_workers = 4;
  options.quorum.most_grace = Seconds(60);
  options.parameters_every = 2;
  options.shadow = true;
  return options;
}

std::string test_name_of(const ::testing::TestParamInfo<const char*>& info) {
  return pride::testing::test_name(info.param);
}

class Methods : public ::testing::TestWithParam<const char*> {};

TEST_P(Methods, LeaveAllWorkersTheReplayAndTheShadowWithTheSameParameters) {
  constexpr int kWorkers = 4;
  const OptimizerOptions options = options_of(GetParam());
  const std::int64_t steps = 5 * method_info(options.method, 1).period;
  Server server(four_with_shadow());
  std::vector<std::unique_ptr<Worker>> workers;
  // one after the other: the first gives its parameters, which are not those of the others
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(std::make_unique<Worker>(i, options, server.client(i), i == 0 ? 0.5F : 0));
  }
  at_once(kWorkers, [&](int i) { workers[static_cast<std::size_t>(i)]->steps(steps); });
  const std::uint64_t hash = workers[0]->hash();
  for (auto& worker : workers) EXPECT_EQ(worker->hash(), hash);
  EXPECT_EQ(server.seen.failed, "");

  const JournalFiles files = scan_journal(server.folder());
  ASSERT_EQ(files.next_round(), 5);
  RunWorker replay(nullptr, layout(), options);
  FlatBuffer params(layout().flat_size());
  fill(layout(), params, [](std::size_t t, std::size_t i) { return initial(t, i) + 0.5F; });
  for (const JournalSegment& segment : files.segments) {
    for (const JournalEntry& entry : segment.entries) {
      const auto record = read_bytes(segment.file, entry.offset, entry.length);
      EXPECT_EQ(decode_record(record, "test").voters.size(), 4U);
      replay.replay(params.span(), record);
    }
  }
  replay.to_common(params.span());
  EXPECT_EQ(param_hash(layout(), params.span()), hash);

  // the shadow's, after 2 and 4 rounds; no worker was asked
  ASSERT_EQ(files.parameters.size(), 3U);
  EXPECT_EQ(files.parameters[2].before_round, 4);
  Worker late(9, options, server.client(9));  // from there, and by one record
  EXPECT_EQ(late.hash(), hash);
}

INSTANTIATE_TEST_SUITE_P(All, Methods,
                         ::testing::Values("dlion-vote", "dlion-avg", "local-vote", "adamw", "dsm",
                                           "diloco"),
                         test_name_of);

TEST(Optimizers, EndAliveWhereWorkersJoinAndVoteAllAtOnce) {
  CoordinatorOptions options;
  options.quorum.min_workers = 2;
  options.quorum.grace = Seconds(0.01);
  options.parameters_every = 3;
  Server server(options);
  std::vector<std::uint64_t> hashes(6);
  at_once(6, [&](int i) {
    Worker worker(i, options_of("dlion-vote"), server.client(i));
    worker.steps(12);
    hashes[static_cast<std::size_t>(i)] = worker.hash();
  });
  EXPECT_EQ(server.seen.failed, "");
  EXPECT_GE(scan_journal(server.folder()).next_round(), 12);
}

// Else it would train, and never be counted. The rate is no part of it: schedules change it.
TEST(Optimizers, WithOtherConstantsAreRefusedWhenTheyJoinWithTheFirstThatDiffers) {
  Server server({});
  const OptimizerOptions options = options_of("dlion-vote");
  const auto refusal = [&](const auto& change) {
    OptimizerOptions other = options;
    change(other.groups[0]);
    return texts::error_of<InvalidArgument>(
        [&] { const Worker worker(1, other, server.client(1)); });
  };
  const Worker first(0, options, server.client(0));
  EXPECT_TRUE(has(refusal([](auto& g) { g.weight_decay = 0.25; }),
                  "weight decay of group 0: the run has 0, this worker 0.25"));
  EXPECT_TRUE(has(refusal([](auto& g) { g.beta2 = 0.5; }),
                  "beta2 of group 0: the run has 0.99, this worker 0.5"));
  EXPECT_EQ(refusal([](auto& g) { g.beta1 = 0.9; }), "") << "that is the default";
  EXPECT_EQ(refusal([](auto& g) { g.lr = 0.5; }), "");
}

TEST(Optimizers, WeighMeansBySamples) {
  OptimizerOptions options = options_of("diloco");
  options.options = {
      {"h", "2"}, {"outer_lr", "1"}, {"outer_beta1", "0"}, {"nesterov", "no"}};  // FedAvg
  std::uint64_t hashes[2] = {};
  for (const bool weighted : {false, true}) {
    CoordinatorOptions by_samples;
    by_samples.quorum.min_workers = 2;
    by_samples.quorum.most_grace = Seconds(60);
    by_samples.weighting = weighted ? Weighting::kGiven : Weighting::kEqual;
    Server server(by_samples);
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < 2; ++i) {
      options.vote_weight = i == 0 ? 12'000 : 500;
      workers.push_back(std::make_unique<Worker>(i, options, server.client(i)));
    }
    at_once(2, [&](int i) { workers[static_cast<std::size_t>(i)]->steps(6); });
    EXPECT_EQ(server.seen.failed, "");
    EXPECT_EQ(workers[0]->hash(), workers[1]->hash());
    hashes[weighted ? 1 : 0] = workers[0]->hash();
    const JournalFiles files = scan_journal(server.folder());
    const JournalEntry& entry = files.segments[0].entries[0];
    const RoundRecord record =
        decode_record(read_bytes(files.segments[0].file, entry.offset, entry.length), "test");
    ASSERT_EQ(record.voters.size(), 2U);
    EXPECT_EQ(record.voters[0].weight, weighted ? 24 : 1);
    EXPECT_EQ(record.voters[1].weight, 1);
  }
  EXPECT_NE(hashes[0], hashes[1]);
}

// --- Bytes of a round. coordinator/docs/wire_format.md, "Calls". ------------------------------

std::uint64_t varint(std::uint64_t v) { return v < 128 ? 1 : 1 + varint(v / 128); }
// Of a field that is left out where it is 0.
std::uint64_t field(std::uint64_t v) { return v == 0 ? 0 : 1 + varint(v); }
std::uint64_t bytes_field(std::uint64_t n) { return 1 + varint(n) + n; }

class Bytes : public ::testing::TestWithParam<const char*> {};

TEST_P(Bytes, AreThoseThatAreStated) {
  constexpr std::uint64_t kSession = 18, kHash = 9;
  Server server({});
  const auto client = server.client(0);
  const OptimizerOptions options = options_of(GetParam());
  Worker worker(0, options, client);
  worker.steps(1);
  const Traffic before = client->traffic();
  worker.steps(2);
  const Traffic after = client->traffic();

  const Layout tensors = layout();
  Sections sections(tensors, options, 1);
  const auto steps = sections.make_steps(options, 1, Space::host());
  const CentralRound rounds(sections, steps);
  const std::uint64_t ballot = rounds.ballot_bytes(1), round = field(1);
  const Voter voter;
  const std::uint64_t record = rounds.record_bytes(1, 1, {&voter, 1});
  // before round 0, so that two fields of it are 0
  const std::uint64_t run_state =
      field(2) + kHash + field(4 * RunValues(tensors, sections, steps).floats());
  const std::uint64_t state = bytes_field(run_state);

  const std::uint64_t up =
      (kSession + round + field(ballot)) +                                // Missing
      (kSession + round + field(ballot) + kHash + bytes_field(ballot)) +  // PutChunk
      (kSession + round + field(ballot) + 2 * kHash + bytes_field(60)) +  // Vote
      (kSession + round + field(1000)) +                                  // WaitRound
      (kSession + 2 + round);                                             // GetChunk
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, up);
  const std::uint64_t missing = 1 + 1 + 1;  // one chunk
  // the state of Vote: the round is open still, or over
  const std::uint64_t down = missing + state + (2 + 2 + field(record) + kHash + state) +
                             (bytes_field(record) + kHash + field(record));
  EXPECT_EQ(after.bytes_received - before.bytes_received, down);
  EXPECT_LE(up - ballot, 220U);
  EXPECT_LE(down - record, 100U);
}

INSTANTIATE_TEST_SUITE_P(All, Bytes, ::testing::Values("dlion-vote", "adamw"), test_name_of);

}  // namespace
}  // namespace pride::coord::test
