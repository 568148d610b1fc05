// The state of a coordinator, shared by its source files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coord/coordinator.h"
#include "coord/grace.h"
#include "coord/journal.h"
#include "coord/lost_ballots.h"
#include "coord/open_round.h"
#include "coord/registrations.h"
#include "coord/uploads.h"
#include "coord/weights.h"
#include "pride/serving.h"

namespace pride::coord {

// An unanswered call of WaitRound.
struct Waiter {
  std::int64_t round = 0;
  Time until{};
  bool abstains = false;
  std::uint64_t bytes = 0;  // of the request
  Coordinator::Answer answer;
};

// This process's state of a registered worker.
struct Worker {
  std::string session;            // empty: none since the start
  std::deque<std::string> ended;  // earlier sessions, whose calls get the reason of their end
  Peer peer;
  std::optional<Time> seen;
  bool live = false;
  std::int64_t round = -1;     // the round it works on, as last reported
  std::int64_t can_be_at = 0;  // the latest round it can work on, by what it fetched and sent
  int missed = 0;              // consecutive rounds that waited for it in vain
  std::shared_ptr<Upload> ballot, parameters;
  std::int64_t late_round = -1, refused_round = -1;
  std::optional<Time> ballot_at;  // when its last ballot came
  LostBallots lost;
  std::string lost_because;  // of the last lost one
  std::optional<Waiter> waiter;
  std::uint64_t counted = 0, late = 0, refused = 0, bytes_in = 0, bytes_out = 0;
  int weight = 1;
  std::optional<double> loss;
};

// The parts of a closed round that calls need.
struct ClosedRound {
  std::int64_t round = 0;
  std::uint64_t params_hash = 0;
  std::vector<int> voters;             // ascending
  std::map<int, std::string> why_not;  // reasons, by worker, of ballots left out
  Time at{};
};

// A round being written to the journal.
struct Closing {
  std::int64_t round = 0;
  std::vector<HeldBallot> ballots;  // by ascending number
  std::vector<int> weights;         // of each ballot; 0: left out
  std::vector<std::optional<double>> agreement;
  std::map<int, std::string> why_not;
  RoundReport report;
  std::vector<std::byte> record;
};

struct ParametersAsk {
  int number = 0;
  std::int64_t before_round = 0;
};

struct ParametersOffer {
  int number = 0;
  std::int64_t before_round = 0;
  std::uint64_t params_hash = 0;
  std::shared_ptr<const Upload> bytes;
};

struct Coordinator::Impl {
  Impl(CoordinatorOptions given, MakeServing make, Run run, Observer& watcher, Time now);

  // Holds the lock; deferred calls run after its release.
  class Work {
   public:
    explicit Work(Impl& impl) : lock_(impl.mutex) {}
    ~Work() {
      lock_.unlock();
      for (auto& task : later_) task();
    }
    void later(std::function<void()> task) { later_.push_back(std::move(task)); }

   private:
    std::unique_lock<std::mutex> lock_;
    std::vector<std::function<void()>> later_;
  };

  // All functions below need the lock, unless noted.

  // coordinator.cpp
  struct Caller {
    int number = -1;
    std::string refused = {};
    explicit operator bool() const { return number >= 0; }
  };
  Caller caller(const std::string& session, const Peer& peer, Time now);
  Worker& at(int number) { return workers[static_cast<std::size_t>(number)]; }
  const std::string& name_of(int number) const {
    return registrations.entries()[static_cast<std::size_t>(number)].name;
  }
  void set_state(RunState& state) const;
  std::string register_refusal(const RegisterRequest& request, const Peer& peer, Time now,
                               Registrations::Found& found);
  void put_away(int number);  // not live; drops its uploads
  void begin_session(int number, const Peer& peer, Time now);
  void end_session(int number);
  void count_bytes(int number, std::uint64_t in, std::uint64_t out);
  void note_refused(const char* call, int number, const Peer& peer, const std::string& why);
  // Counts a call's bytes, and reports its refusal.
  template <typename Request, typename Reply>
  Reply done(const char* call, int number, const Peer& peer, const Request& request, Reply reply) {
    note_refused(call, number, peer, reply.refused());
    count_bytes(number, request.ByteSizeLong(), reply.ByteSizeLong());
    return reply;
  }
  void pass(Time time) { now = std::max(now, time); }
  std::string stopped() const;
  void fail(Work& work, const std::string& why);

  // coordinator_uploads.cpp
  struct Place {  // destination of a chunk
    std::shared_ptr<Upload> upload = {};
    bool closed = false;
    std::string refused = {};
  };
  Place place_of(const Caller& caller, Kind kind, std::int64_t round, std::uint64_t total);
  std::uint64_t ballot_size(std::int64_t round);
  Place ballot_place(int number, std::int64_t round, std::uint64_t total);
  Place parameters_place(int number, std::int64_t before_round, std::uint64_t total);

  // coordinator_votes.cpp
  std::optional<std::uint64_t> known_hash() const;
  bool is_waited_for(const Worker& worker) const;
  Votes votes() const;
  void reached(int number, std::int64_t round);
  std::string few_voters() const;  // empty: the open round has enough ballots, or none yet
  std::optional<Time> few_voters_due() const;
  bool may_be_late(int number, std::int64_t round) const;
  bool has_whole_ballot(int number, std::int64_t round);
  void count_late(int number, std::int64_t round, Time time, bool has_voted);
  std::string late_reason(int number);
  void count_lost(int number, const std::string& why);
  std::string lost_warning(int number) const;
  std::optional<VoteReply> settled_vote(int number, std::int64_t round, Time time, bool is_checked);
  VoteReply begin_vote(const VoteRequest& request, int number,
                       std::shared_ptr<const Upload>& frames);
  std::optional<HeldBallot> check(const VoteRequest& request, int number,
                                  std::shared_ptr<const Upload> frames, const Serving& rules,
                                  VoteReply& reply) const;  // without the lock
  Voter registered_voter(int number) const;                 // without the lock
  void end_vote(Work& work, int number, std::int64_t round, std::optional<HeldBallot> ballot,
                VoteReply& reply);
  void hold(Work& work, HeldBallot ballot, Time time);
  void evaluate(Work& work);
  void refuse_minority(Work& work);
  std::string difference(const HeldBallot& ballot, const HeldBallot& most) const;

  // coordinator_rounds.cpp
  void start_closing(Work& work, Close how);
  std::vector<int> weights_of(const std::vector<HeldBallot>& ballots) const;
  void close(std::shared_ptr<Closing> closing);  // without the lock
  void finish(Work& work, Closing& closing);
  void report(Closing& closing);
  const ClosedRound* closed_round(std::int64_t round) const;
  bool was_counted(int number, std::int64_t round) const;
  WaitRoundReply round_reply(int number, std::int64_t round) const;
  void answer(Work& work, int number, WaitRoundReply reply);
  void answer_all(Work& work);
  void recall_last_record(Time now);

  // coordinator_control.cpp
  std::string refuse(const Orders& given) const;
  RunLength ordered(const Orders& given) const;  // 0: not reported
  void eject(Work& work, int number);
  void set_length() { length = ordered(orders); }
  std::int64_t period() const { return serving->step_of(0) + 1; }  // steps of a round
  std::string at_end() const;  // "the run is at its end ..."; empty: it is not

  // coordinator_parameters.cpp
  void ask_for_parameters(const Closing& closing);
  std::string take_offer(Work& work, ParametersOffer offer);
  void confirm_offer(Work& work, const Closing& closing);
  void keep(Work& work, ParametersOffer offer);
  // Known: the shadow's hash before a round. write_parameters() and follow() run without the lock.
  struct Known {
    std::int64_t round = 0;
    std::uint64_t hash = 0;
    std::int64_t kept = -1;      // round of the newest parameters written; -1: none
    std::string unwritten = {};  // why the newest parameters were not written
  };
  std::string write_parameters(std::int64_t before_round, std::uint64_t hash,
                               std::span<const float> params);
  std::optional<Known> follow();
  void learn_hash(const std::optional<Known>& now_known);

  const CoordinatorOptions options;
  const MakeServing make_serving;
  const Run run_later;
  Observer& observer;

  Journal journal;                 // has a lock of its own
  std::unique_ptr<Shadow> shadow;  // used only by tasks of run_later(), one at a time
  mutable std::mutex mutex;        // guards the members below

  Time now;
  bool stopping = false;
  std::string failed;
  std::optional<RunDescription> run;
  std::shared_ptr<const Serving> serving;
  Orders orders;
  QuorumOptions quorum;  // the options, overridden by orders
  RunLength length;      // of the open round
  Registrations registrations;
  std::vector<Worker> workers;  // by number
  std::unordered_map<std::string, int> sessions;

  OpenRound open;
  bool closing = false;
  std::pair<std::int64_t, std::uint64_t> known_size{-1, 0};  // round, bytes of its ballots
  std::optional<Time> first_ballot, quorum_at, split_since;
  Time few_said{};
  Seconds window{0};
  GraceWindow grace;
  LearnedWeights learned;
  std::uint64_t sample_key = 0;

  std::deque<ClosedRound> closed;   // the newest, ascending
  std::deque<RoundReport> reports;  // the newest, ascending
  std::int64_t last_round = -1;     // of last_record
  std::shared_ptr<const std::vector<std::byte>> last_record;

  std::optional<ParametersAsk> ask;
  std::optional<ParametersOffer> offer;  // waits for its round's record, which has the hash
  std::optional<std::pair<int, Time>> first_giver;  // sends parameters before round 0; last call
  std::optional<Known> shadow_knows;
  std::int64_t keeping = -1;      // round of the parameters being written
  std::int64_t try_again_at = 0;  // round of the next attempt after a failed write; 0: none failed

  std::uint64_t ballots_counted = 0, ballots_late = 0, ballots_refused = 0, calls_refused = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;
};

inline constexpr std::size_t kRoundsKept = 256;
inline constexpr int kMostMissed = 3;
inline constexpr std::chrono::seconds kFewAfter{5}, kFewAgain{60};

}  // namespace pride::coord
