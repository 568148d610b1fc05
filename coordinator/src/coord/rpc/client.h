// The worker's side of a coordinator's calls: registration, uploads, waiting, downloads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coord/lost_ballots.h"
#include "coord/rpc/calls.h"
#include "pride/coord/client.h"

namespace pride::coord {

struct WorkerSecret {
  std::string bytes;
  std::string where;  // for people: "that in runs/alice.secret"
};

class Client final : public CoordinatorClient {
 public:
  Client(const CoordinatorAddress& address, std::string name, WorkerSecret secret);
  ~Client() override;

  CoordinatorWelcome join(const RunDescription& run, int vote_weight) override;
  CoordinatorVote vote(const Ballot& ballot) override;
  CoordinatorVote wait(std::int64_t round) override;
  std::vector<std::byte> record(std::int64_t round) override;
  void get_parameters(std::int64_t parameters_round, std::span<float> params) override;
  void put_parameters(std::int64_t before_round, std::uint64_t hash,
                      std::span<const float> params) override;
  CoordinatorWelcome look() override;
  RunLength length() const override { return length_; }
  void interrupt() override { calls_.stop("interrupted"); }
  Traffic traffic() const override { return calls_.traffic(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Upload {
    Kind kind;
    std::int64_t round;
    std::span<const std::byte> bytes;
  };

  RegisterRequest registration() const;
  void take_registration(const RegisterReply& reply);
  RegisterReply send_registration();
  std::string session();
  CoordinatorWelcome welcome(const RunState& state);
  // Fills in the session and calls. Registers again if the coordinator has no such session.
  template <typename Request, typename Reply>
  Reply ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
            Request& request, const std::string& what, std::chrono::milliseconds deadline);
  void refuse(const std::string& what, const std::string& why) const;
  struct Uploaded {
    bool closed = false;  // the coordinator needs no more of it
    std::string refused = {};
  };
  Uploaded upload(const Upload& upload, const std::string& what);
  VoteReply send_vote(const Ballot& ballot, std::uint64_t hash);
  WaitRoundReply wait_for(std::int64_t round, bool abstains);
  CoordinatorVote result_of(std::int64_t round, const WaitRoundReply& reply);
  void count_lost(std::int64_t round, const CoordinatorVote& vote, Clock::time_point began);
  void set_round(std::int64_t round);
  std::vector<std::byte> download(Kind kind, std::int64_t round, const std::string& what);
  void beat();
  void leave();
  void beat_once(const HeartbeatRequest& request);

  const std::string name_;
  const WorkerSecret secret_;
  Calls calls_;
  std::string run_;  // encoded; empty before join()
  std::uint32_t vote_weight_ = 1;
  RunLength length_;  // this and the next two are used only by the worker's thread
  LostBallots lost_;
  std::optional<Clock::time_point> round_ended_;
  std::mutex registering_;  // one thread at a time renews the session for all
  std::mutex mutex_;        // guards the members below, except beats_
  std::condition_variable wake_;
  std::string session_;
  bool stopping_ = false;
  std::int64_t round_ = 0;  // this worker's position, for the coordinator's status page
  std::uint32_t number_ = 0;
  std::chrono::milliseconds beat_every_{3000};
  std::thread beats_;
};

}  // namespace pride::coord
