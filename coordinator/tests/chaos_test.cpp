// Workers that stall, die, come back and repeat calls, and a coordinator that is killed at any
// moment. Oracles: an undisturbed replay of the journal; and each round served again from the
// ballots that were accepted.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "pride/random_bits.h"
#include "rig.h"

namespace pride::coord::test {
namespace {

constexpr int kWorkers = 8;
constexpr std::int64_t kRounds = 60;  // in each of the runs

CoordinatorOptions options() {
  CoordinatorOptions options;
  options.quorum = {.min_workers = 2, .share = 0.5, .most_grace = Seconds(6)};
  options.parameters_every = 10;
  options.segment_bytes = 2000;
  return options;
}

class Chaos {
 public:
  explicit Chaos(std::uint64_t seed) : random_(seed, 1, 0), rig_(options()) {
    rig_.deferred = true;
    for (int i = 0; i < kWorkers; ++i)
      workers_.push_back({.name = concat("worker-", i), .replica = Replica(rig_.run())});
  }

  void run() {
    for (int step = 0; open_round() < kRounds; ++step) {
      ASSERT_LT(step, 20'000) << "no progress at round " << open_round();
      for (Worker& worker : workers_) disturb(worker);
      for (Worker& worker : workers_) {
        if (chance(0.6)) act(worker);
      }
      pass();
      if (chance(0.02)) restart();
    }
    settle();
  }

  void check() {
    EXPECT_EQ(rig_.seen.failed, "");
    const JournalFiles files = scan_journal(rig_.folder());
    Replica replay(rig_.run());
    for (const JournalSegment& segment : files.segments) {
      for (const JournalEntry& entry : segment.entries) {
        replay.apply(read_bytes(segment.file, entry.offset, entry.length));
      }
    }
    EXPECT_GE(replay.round(), kRounds);
    for (const Worker& worker : workers_) {
      EXPECT_EQ(worker.replica.round(), replay.round()) << worker.name;
      EXPECT_EQ(worker.replica.hash(), replay.hash()) << worker.name;
    }
    EXPECT_GT(served_again_, kRounds / 2);
    // faults did happen
    EXPECT_GT(restarts_, 0);
    EXPECT_GT(deaths_, 0);
    EXPECT_GT(rig_.seen.late.size(), 0U);
    EXPECT_GT(duplicates_, 0);
  }

 private:
  struct Worker {
    std::string name;
    Replica replica;
    std::optional<Replica> checkpoint = {};
    int number = -1;
    bool joined = false;
    double asleep_until = 0;
    std::string frames = {};  // of the round that it votes on
    std::int64_t frames_round = -1;
    std::shared_ptr<std::optional<WaitRoundReply>> waiting = {};
    int lives = 0;
  };

  bool chance(double p) { return random_.next_unit() < p; }
  double time() const { return Seconds(rig_.now().time_since_epoch()).count(); }
  std::int64_t open_round() { return rig_.status().open_round; }

  void disturb(Worker& worker) {
    if (time() < worker.asleep_until) return;
    if (chance(0.01)) {
      worker.asleep_until = time() + 25 * random_.next_unit();  // at times so long that it is lost
    } else if (chance(0.01)) {
      ++deaths_;
      // of its memory there is nothing left, or an old checkpoint
      const bool from_checkpoint = worker.checkpoint && chance(0.5);
      Replica replica = from_checkpoint ? *worker.checkpoint : Replica(rig_.run());
      worker = {.name = worker.name,
                .replica = std::move(replica),
                .checkpoint = worker.checkpoint,
                .lives = worker.lives + 1};
      worker.asleep_until = time() + 10 * random_.next_unit();
    } else if (chance(0.05)) {
      worker.checkpoint = worker.replica;
    }
  }

  void pass() {
    rig_.pass(0.5 * random_.next_unit());
    if (chance(0.7)) rig_.run_tasks();
    if (chance(0.8)) rig_.tick();
    serve_again();
  }

  // Whatever was put off is lost, and an append may have been on its way.
  void restart() {
    ++restarts_;
    rig_.kill();
    taken_.clear();
    const JournalFiles files = scan_journal(rig_.folder());
    if (!files.segments.empty() && chance(0.5)) {
      const std::string entry =
          entry_header(run_hash_of(*files.run), {files.next_round(), 0, 300, 9}) +
          std::string(300, 'x');
      std::ofstream out(files.segments.back().file, std::ios::binary | std::ios::app);
      out.write(entry.data(), static_cast<std::streamsize>(random_.next_below(332)));
    }
    rig_.start();
    for (Worker& worker : workers_) worker.waiting = nullptr;  // connections break
  }

  void act(Worker& worker) {
    if (time() < worker.asleep_until) return;
    if (!worker.joined) return join(worker);
    const HeartbeatReply beat = rig_.heartbeat(worker.number, worker.replica.round());
    if (!beat.refused().empty()) {
      EXPECT_TRUE(has(beat.refused(), "register again"));
      worker.joined = false;
      worker.waiting = nullptr;
      return;
    }
    if (worker.waiting) return look_at_answer(worker);
    if (catch_up(worker, beat.state())) vote(worker);
  }

  void join(Worker& worker) {
    const RegisterReply reply = rig_.join(worker.name);
    if (!reply.refused().empty()) return;
    worker.joined = true;
    worker.number = static_cast<int>(reply.number());
    const RunState& state = reply.state();
    if (state.parameters_round() < 0 && state.open_round() == 0) {
      rig_.offer(worker.number, 0, worker.replica.params(), worker.replica.hash());
    }
  }

  // At the open round?
  bool catch_up(Worker& worker, const RunState& state) {
    if (state.parameters_round() > worker.replica.round() && chance(0.5)) {
      const std::string bytes = rig_.get(PARAMETERS, worker.number, state.parameters_round());
      std::vector<float> params(bytes.size() / 4);
      std::memcpy(params.data(), bytes.data(), bytes.size());
      worker.replica.take(state.parameters_round(), params);
      EXPECT_EQ(worker.replica.hash(), state.parameters_hash());
    }
    while (worker.replica.round() < state.open_round()) {
      worker.replica.apply(bytes_of(rig_.get(RECORD, worker.number, worker.replica.round())));
      if (chance(0.05)) return false;
    }
    return true;
  }

  void vote(Worker& worker) {
    const std::int64_t round = worker.replica.round();
    if (worker.frames_round != round || chance(0.05)) {  // or another gradient, after a stall
      const auto key = random_.next_u64();
      worker.frames = ballot_of(rig_.run(), {.number = worker.number, .round = round},
                                [&](std::size_t i) { return (mix64(key, i) & 1) != 0; });
      worker.frames_round = round;
    }
    if (chance(0.2)) rig_.put_all(BALLOT, worker.number, round, worker.frames);
    send(worker, round);
    while (chance(0.3)) {
      ++duplicates_;
      send(worker, round - random_.next_below(3));  // reordered: older rounds again
    }
    worker.waiting = rig_.wait(worker.number, round, 4000);
    look_at_answer(worker);
  }

  void send(Worker& worker, std::int64_t round) {
    if (round < 0) return;
    const VoteReply reply =
        rig_.vote({.number = worker.number, .round = round}, worker.replica.hash(), worker.frames);
    const bool is_open = reply.state().open_round() == round;
    if (reply.status() == VoteReply::TAKEN && is_open && round == worker.frames_round) {
      taken_.try_emplace({round, worker.number}, worker.frames);
    }
  }

  void look_at_answer(Worker& worker) {
    if (!*worker.waiting) return;
    const WaitRoundReply reply = **worker.waiting;
    worker.waiting = nullptr;
    EXPECT_EQ(reply.refused(), "");
    if (!reply.closed()) return;
    const std::int64_t round = worker.replica.round();
    const RoundRecord record =
        worker.replica.apply(bytes_of(rig_.get(RECORD, worker.number, round)));
    bool counted = false;
    for (const Voter& voter : record.voters) counted = counted || voter.number == worker.number;
    EXPECT_EQ(reply.counted(), counted);
    if (reply.wants_parameters() && chance(0.7)) {
      rig_.offer(worker.number, round + 1, worker.replica.params(), worker.replica.hash());
    }
  }

  // Of the rounds that were closed since, each from the ballots of its voters.
  void serve_again() {
    for (; served_ < rig_.seen.rounds.size(); ++served_) {
      const RoundReport& report = rig_.seen.rounds[served_];
      std::vector<Voter> voters;
      std::vector<std::string> ballots;
      for (const VoterReport& voter : report.voters) {
        voters.push_back({static_cast<std::uint16_t>(voter.number), 1});
        ASSERT_TRUE(taken_.contains({report.round, voter.number})) << "a vote that nobody cast";
        ballots.push_back(taken_.at({report.round, voter.number}));
      }
      std::vector<std::vector<std::uint64_t>> aligned;
      std::vector<std::span<const std::byte>> frames;
      for (const std::string& ballot : ballots) {
        std::memcpy(aligned.emplace_back(ballot.size() / 8).data(), ballot.data(), ballot.size());
        frames.push_back(std::as_bytes(std::span(aligned.back())));
      }
      const auto result =
          make_serving(rig_.run())->serve(report.round, digest_of(scalars()), voters, frames);
      const JournalFiles files = scan_journal(rig_.folder());
      for (const JournalSegment& segment : files.segments) {
        for (const JournalEntry& entry : segment.entries) {
          if (entry.round != report.round) continue;
          const auto bytes = read_bytes(segment.file, entry.offset, entry.length);
          EXPECT_EQ(decode_record(bytes, "test").frames, result) << "round " << report.round;
          ++served_again_;
        }
      }
    }
  }

  // No more faults: all come to the same round.
  void settle() {
    for (int step = 0; step < 200; ++step) {
      for (Worker& worker : workers_) {
        worker.asleep_until = 0;
        act(worker);
      }
      rig_.pass(0.1);
      rig_.run_tasks();
      rig_.tick();
      serve_again();
    }
    for (Worker& worker : workers_) {
      if (!worker.joined) join(worker);
      catch_up_all(worker);
    }
  }
  void catch_up_all(Worker& worker) {
    while (!catch_up(worker, rig_.heartbeat(worker.number, worker.replica.round()).state())) {
    }
  }

  PhiloxStream random_;
  Rig rig_;
  std::vector<Worker> workers_;
  std::map<std::pair<std::int64_t, int>, std::string> taken_;  // by round and worker
  std::size_t served_ = 0;
  std::int64_t served_again_ = 0;
  int restarts_ = 0, deaths_ = 0, duplicates_ = 0;
};

class ChaosTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ChaosTest, LeavesAllReplicasEqualToTheReplayOfTheJournal) {
  Chaos chaos(GetParam());
  chaos.run();
  chaos.check();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChaosTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace pride::coord::test
