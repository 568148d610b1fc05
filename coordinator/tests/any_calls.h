// Any bytes as calls of a coordinator, beside an honest worker. For the fuzzer and its test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "coord/coordinator.h"
#include "coord/uploads.h"
#include "pride/digest.h"
#include "run_of_signs.h"

namespace pride::coord::test {

class AnyCalls {
 public:
  // In a folder that is empty, or the journal of an earlier one.
  explicit AnyCalls(const std::filesystem::path& folder) : run_(run_of_signs()), replica_(run_) {
    CoordinatorOptions options;
    options.folder = folder;
    options.quorum.grace = Seconds(1);
    options.attempts_per_minute = 1 << 20;
    coordinator_ = std::make_unique<Coordinator>(
        options, make_serving, [](const std::function<void()>& task) { task(); }, observer_, now_);
    honest_ = join("honest");
    other_ = join("other");
  }

  // One call: its kind, then the bytes of its message. Messages name the session of `other` where
  // they name none.
  void call(std::uint8_t kind, const std::string& bytes) {
    switch (kind % 8) {
      case 0:
        return void(send<RegisterRequest>(bytes, &Coordinator::register_worker));
      case 1:
        return void(send<HeartbeatRequest>(bytes, &Coordinator::heartbeat));
      case 2:
        return void(send<MissingRequest>(bytes, &Coordinator::missing));
      case 3:
        return void(send<PutChunkRequest>(bytes, &Coordinator::put_chunk));
      case 4:
        return void(send<VoteRequest>(bytes, &Coordinator::vote));
      case 5:
        return void(send<OfferParametersRequest>(bytes, &Coordinator::offer_parameters));
      case 6:
        return void(send<GetChunkRequest>(bytes, &Coordinator::get_chunk));
      default:
        wait(bytes);
    }
  }

  // The honest worker's vote closes a round, at the latest after the grace window, and its record
  // can be applied. Throws std::logic_error if not.
  void check() {
    RunState state;
    for (int i = 0; i < 3; ++i) {
      vote();
      now_ += std::chrono::seconds(20);
      coordinator_->tick(now_);
      HeartbeatRequest beat;
      beat.set_session(honest_);
      beat.set_round(replica_.round());
      state = coordinator_->heartbeat(beat, {}, now_).state();
      if (state.open_round() > replica_.round()) break;
    }
    if (state.open_round() <= replica_.round()) throw std::logic_error("the round stays open");
    while (replica_.round() < state.open_round()) {
      GetChunkRequest request;
      request.set_session(honest_);
      request.set_kind(RECORD);
      request.set_round(replica_.round());
      const auto reply = coordinator_->get_chunk(request, {}, now_);
      replica_.apply(std::as_bytes(std::span(reply.data())));
    }
    if (!observer_.failed.empty()) throw std::logic_error(observer_.failed);
  }

 private:
  struct Failures final : Observer {
    void on_failed(const std::string& why) override { failed = why; }
    std::string failed;
  };

  std::string join(const std::string& name) {
    RegisterRequest request;
    request.set_protocol(kProtocol);
    request.set_name(name);
    request.set_secret(std::string(16, name[0]));
    request.set_run(encode_run(run_));
    const RegisterReply reply = coordinator_->register_worker(request, {}, now_);
    if (!reply.refused().empty()) throw std::logic_error(reply.refused());
    return reply.session();
  }

  template <typename Request>
  bool parse(const std::string& bytes, Request& request) {
    if (!request.ParseFromString(bytes)) return false;
    if constexpr (requires { request.session(); }) {
      if (request.session().empty()) request.set_session(other_);
    }
    return true;
  }
  template <typename Request, typename Reply>
  bool send(const std::string& bytes,
            Reply (Coordinator::*method)(const Request&, const Peer&, Time)) {
    Request request;
    if (!parse(bytes, request)) return false;
    now_ += std::chrono::milliseconds(10);
    (void)((*coordinator_).*method)(request, {}, now_).ByteSizeLong();
    return true;
  }
  void wait(const std::string& bytes) {
    WaitRoundRequest request;
    if (!parse(bytes, request)) return;
    coordinator_->wait_round(request, {}, now_, [](const WaitRoundReply&) {});
  }
  void vote() {
    const std::string frames =
        ballot_of(run_, {.number = 0, .round = replica_.round()}, [](std::size_t) { return true; });
    PutChunkRequest put;
    put.set_session(honest_);
    put.set_round(replica_.round());
    put.set_total(frames.size());
    put.set_hash(hash_bytes(std::as_bytes(std::span(frames))));
    put.set_data(frames);
    coordinator_->put_chunk(put, {}, now_);
    VoteRequest vote;
    vote.set_session(honest_);
    vote.set_round(replica_.round());
    vote.set_total(frames.size());
    vote.set_hash(put.hash());
    vote.set_params_hash(replica_.hash());
    vote.set_scalars(scalars_text());
    coordinator_->vote(vote, {}, now_);
  }

  RunDescription run_;
  Replica replica_;
  Failures observer_;
  Time now_{std::chrono::hours(1)};
  std::unique_ptr<Coordinator> coordinator_;
  std::string honest_, other_;
};

}  // namespace pride::coord::test
