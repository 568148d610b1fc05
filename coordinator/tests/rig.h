// A coordinator in a fresh folder with a clock that a test moves, and the calls of its workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coord/coordinator.h"
#include "coord/journal_scan.h"
#include "coord/uploads.h"
#include "pride/digest.h"
#include "run_of_signs.h"
#include "support/temp_folder.h"

namespace pride::coord::test {

// The events that an observer received.
struct Seen final : Observer {
  void on_round(const RoundReport& report) override { rounds.push_back(report); }
  void on_joined(int number, const std::string& name, const Peer&, bool new_name) override {
    log.push_back(concat("joined ", number, " ", name, new_name ? " new" : ""));
  }
  void on_lost(int number, const std::string&, const std::string& why) override {
    log.push_back(concat("lost ", number, ": ", why));
  }
  void on_left(int number, const std::string&) override { log.push_back(concat("left ", number)); }
  void on_refused(const std::string& call, int number, const std::string&, const Peer&,
                  const std::string& why) override {
    refused.push_back(concat(call, " ", number, ": ", why));
  }
  void on_late(int number, const std::string&, std::int64_t round, Seconds after) override {
    late.push_back({number, round, after.count()});
  }
  void on_parameters(std::int64_t round, std::uint64_t, const std::string& from) override {
    log.push_back(concat("parameters ", round, " from ", from));
  }
  void on_journal(const std::string& note) override { log.push_back("journal " + note); }
  void on_warning(const std::string& what) override { log.push_back("warning " + what); }
  void on_failed(const std::string& why) override { failed = why; }

  struct Late {
    int number;
    std::int64_t round;
    double after;
  };
  std::vector<RoundReport> rounds;
  std::vector<std::string> log, refused;
  std::vector<Late> late;
  std::string failed;
};

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << text << "\" has no \"" << part << '"';
}

inline CoordinatorOptions with_quorum(QuorumOptions quorum) {
  CoordinatorOptions options;
  options.quorum = quorum;
  return options;
}

inline std::string secret_of(const std::string& name) {
  std::string secret(kSecretBytes, 's');
  for (std::size_t i = 0; i < std::min(name.size(), secret.size()); ++i) secret[i] = name[i];
  return secret;
}

class Rig {
 public:
  explicit Rig(CoordinatorOptions options = {}, RunDescription run = run_of_signs())
      : options_(std::move(options)), run_(std::move(run)) {
    options_.folder = folder_.path() / "journal";
    start();
  }

  void start() {
    coordinator_ = std::make_unique<Coordinator>(
        options_, make_serving,
        [this](const std::function<void()>& task) {
          tasks_.push_back(task);
          if (!deferred) run_tasks();
        },
        seen, now());
  }
  // As when its process was killed: nothing is said to anybody.
  void kill() {
    tasks_.clear();
    coordinator_.reset();
  }
  // What the coordinator has put off: served rounds, the journal.
  void run_tasks() {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }
  void restart() {
    kill();
    start();
  }

  Coordinator& operator*() { return *coordinator_; }
  Coordinator* operator->() { return coordinator_.get(); }
  const RunDescription& run() const { return run_; }
  std::filesystem::path folder() const { return options_.folder; }
  CoordinatorOptions& options() { return options_; }
  Time now() const { return Time(std::chrono::hours(1)) + elapsed_; }
  void pass(double seconds) {
    elapsed_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
  }
  void tick() { coordinator_->tick(now()); }
  Status status() { return coordinator_->status(now()); }

  RegisterReply join(const std::string& name, std::uint32_t weight = 1, Peer peer = {}) {
    if (peer.address.empty()) peer.address = "192.0.2.1:1000";
    RegisterRequest request;
    request.set_protocol(kProtocol);
    request.set_name(name);
    request.set_secret(secret_of(name));
    request.set_run(encode_run(run_));
    request.set_vote_weight(weight);
    RegisterReply reply = coordinator_->register_worker(request, peer, now());
    if (reply.refused().empty()) {
      sessions_[static_cast<int>(reply.number())] = reply.session();
    }
    return reply;
  }
  const std::string& session(int number) const { return sessions_.at(number); }

  // Sends a whole ballot. Returns the answer of Vote, or what refused a chunk.
  VoteReply vote(BallotOf of, std::uint64_t params_hash, const Signs& signs = all_positive) {
    return vote(of, params_hash, ballot_of(run_, of, signs));
  }
  VoteReply vote(BallotOf of, std::uint64_t params_hash, const std::string& frames) {
    if (PutChunkReply put = put_all(BALLOT, of.number, of.round, frames); !put.refused().empty()) {
      VoteReply reply;
      reply.set_status(VoteReply::REFUSED);
      reply.set_why(put.refused());
      return reply;
    }
    VoteRequest request;
    request.set_session(session(of.number));
    request.set_round(of.round);
    request.set_total(frames.size());
    request.set_hash(hash_bytes(std::as_bytes(std::span(frames))));
    request.set_params_hash(params_hash);
    request.set_scalars(scalars_text(of.lr));
    request.set_loss(1 + of.number);
    return coordinator_->vote(request, peer_, now());
  }
  PutChunkReply put_all(Kind kind, int number, std::int64_t round, const std::string& bytes) {
    PutChunkReply last;
    for (std::uint64_t chunk = 0; chunk < chunks_of(bytes.size()); ++chunk) {
      last = put(kind, number, round, bytes, chunk);
      if (!last.refused().empty()) break;
    }
    return last;
  }
  PutChunkReply put(Kind kind, int number, std::int64_t round, const std::string& bytes,
                    std::uint64_t chunk) {
    PutChunkRequest request;
    request.set_session(session(number));
    request.set_kind(kind);
    request.set_round(round);
    request.set_total(bytes.size());
    request.set_chunk(static_cast<std::uint32_t>(chunk));
    request.set_data(bytes.substr(chunk * kChunkBytes, chunk_bytes(bytes.size(), chunk)));
    request.set_hash(hash_bytes(std::as_bytes(std::span(request.data()))));
    return coordinator_->put_chunk(request, peer_, now());
  }
  OfferParametersReply offer(int number, std::int64_t before_round, std::span<const float> params,
                             std::uint64_t params_hash) {
    const std::string bytes(reinterpret_cast<const char*>(params.data()), params.size_bytes());
    OfferParametersReply reply;
    reply.set_refused(put_all(PARAMETERS, number, before_round, bytes).refused());
    if (!reply.refused().empty()) return reply;
    OfferParametersRequest request;
    request.set_session(session(number));
    request.set_before_round(before_round);
    request.set_total(bytes.size());
    request.set_hash(hash_bytes(std::as_bytes(std::span(bytes))));
    request.set_params_hash(params_hash);
    return coordinator_->offer_parameters(request, peer_, now());
  }
  MissingReply missing(Kind kind, int number, std::int64_t round, std::uint64_t total) {
    MissingRequest request;
    request.set_session(session(number));
    request.set_kind(kind);
    request.set_round(round);
    request.set_total(total);
    return coordinator_->missing(request, peer_, now());
  }
  HeartbeatReply heartbeat(int number, std::int64_t round) {
    HeartbeatRequest request;
    request.set_session(session(number));
    request.set_round(round);
    return coordinator_->heartbeat(request, peer_, now());
  }
  // The reply is set as soon as there is one.
  std::shared_ptr<std::optional<WaitRoundReply>> wait(int number, std::int64_t round,
                                                      std::uint32_t wait_ms = 20'000,
                                                      bool abstains = false) {
    auto reply = std::make_shared<std::optional<WaitRoundReply>>();
    WaitRoundRequest request;
    request.set_session(session(number));
    request.set_round(round);
    request.set_wait_ms(wait_ms);
    request.set_abstains(abstains);
    coordinator_->wait_round(request, peer_, now(), [reply](const WaitRoundReply& given) {
      EXPECT_FALSE(reply->has_value()) << "answered twice";
      *reply = given;
    });
    return reply;
  }
  GetChunkReply chunk(Kind kind, int number, std::int64_t round, std::uint32_t index) {
    GetChunkRequest request;
    request.set_session(session(number));
    request.set_kind(kind);
    request.set_round(round);
    request.set_chunk(index);
    return coordinator_->get_chunk(request, peer_, now());
  }
  std::string get(Kind kind, int number, std::int64_t round) {
    std::string all;
    for (std::uint32_t i = 0;; ++i) {
      const GetChunkReply reply = chunk(kind, number, round, i);
      EXPECT_EQ(reply.refused(), "");
      EXPECT_EQ(hash_bytes(std::as_bytes(std::span(reply.data()))), reply.hash());
      all += reply.data();
      if (!reply.refused().empty() || all.size() >= reply.total()) return all;
    }
  }

  static bool all_positive(std::size_t) { return true; }

  Seen seen;
  bool deferred = false;  // tasks wait for run_tasks()

 private:
  app::test::TempFolder folder_;
  CoordinatorOptions options_;
  RunDescription run_;
  Peer peer_{.certificate = "", .address = "192.0.2.1:1000"};
  std::chrono::nanoseconds elapsed_{0};
  std::map<int, std::string> sessions_;
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<Coordinator> coordinator_;
};

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

using Numbers = std::vector<int>;

// Numbers of the voters of the newest round.
inline Numbers voters(const Seen& seen) {
  Numbers numbers;
  for (const VoterReport& voter : seen.rounds.back().voters) numbers.push_back(voter.number);
  return numbers;
}

}  // namespace pride::coord::test
