// A CoordinatorClient that calls a Coordinator in the same process: every call, chunk and wait of
// the protocol, without a network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <future>
#include <string>
#include <thread>

#include "coord/refusals.h"
#include "rig.h"

namespace pride::coord::test {

class DirectClient final : public CoordinatorClient {
 public:
  DirectClient(Coordinator& coordinator, std::string name)
      : coordinator_(coordinator), name_(std::move(name)) {}

  CoordinatorWelcome join(const RunDescription& run, int vote_weight) override {
    RegisterRequest request;
    request.set_protocol(kProtocol);
    request.set_name(name_);
    request.set_secret(secret_of(name_));
    request.set_run(encode_run(run));
    request.set_vote_weight(static_cast<std::uint32_t>(vote_weight));
    const RegisterReply reply = coordinator_.register_worker(request, peer_, now());
    PRIDE_CHECK(reply.refused().empty(), "coordinator: ", reply.refused());
    count(request, reply);
    session_ = reply.session();
    number_ = static_cast<int>(reply.number());
    return welcome(reply.state());
  }
  CoordinatorVote vote(const Ballot& ballot) override {
    put(BALLOT, ballot.round, ballot.frames);
    VoteRequest request;
    request.set_session(session_);
    request.set_round(ballot.round);
    request.set_total(ballot.frames.size());
    request.set_hash(hash_bytes(ballot.frames));
    request.set_params_hash(ballot.params_hash);
    request.set_scalars(text(ballot.scalars));
    if (ballot.loss) request.set_loss(*ballot.loss);
    const VoteReply reply = coordinator_.vote(request, peer_, now());
    count(request, reply);
    PRIDE_CHECK(reply.status() == VoteReply::TAKEN || reply.status() == VoteReply::LATE,
                "vote: ", reply.why());
    return wait_for(ballot.round, false);
  }
  CoordinatorVote wait(std::int64_t round) override { return wait_for(round, true); }
  std::vector<std::byte> record(std::int64_t round) override { return get(RECORD, round); }
  void get_parameters(std::int64_t round, std::span<float> params) override {
    const auto bytes = get(PARAMETERS, round);
    PRIDE_CHECK(bytes.size() == params.size_bytes(), "parameters of ", bytes.size(), " bytes");
    std::memcpy(params.data(), bytes.data(), bytes.size());
  }
  void put_parameters(std::int64_t before_round, std::uint64_t hash,
                      std::span<const float> params) override {
    if (!put(PARAMETERS, before_round, std::as_bytes(params))) {
      // another worker gives them: they are there once they are on disk
      while (!look().parameters_round) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    OfferParametersRequest request;
    request.set_session(session_);
    request.set_before_round(before_round);
    request.set_total(params.size_bytes());
    request.set_hash(hash_bytes(std::as_bytes(params)));
    request.set_params_hash(hash);
    const auto reply = coordinator_.offer_parameters(request, peer_, now());
    PRIDE_CHECK(reply.refused().empty(), "parameters: ", reply.refused());
    count(request, reply);
  }
  CoordinatorWelcome look() override {
    HeartbeatRequest request;
    request.set_session(session_);
    const HeartbeatReply reply = coordinator_.heartbeat(request, peer_, now());
    PRIDE_CHECK(reply.refused().empty(), "heartbeat: ", reply.refused());
    return welcome(reply.state());
  }
  Traffic traffic() const override { return traffic_; }

 private:
  static Time now() { return std::chrono::steady_clock::now(); }
  static std::string text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void count(const auto& request, const auto& reply) {
    traffic_.bytes_sent += request.ByteSizeLong();
    traffic_.bytes_received += reply.ByteSizeLong();
  }
  CoordinatorWelcome welcome(const RunState& state) const {
    CoordinatorWelcome welcome{.number = number_,
                               .open_round = state.open_round(),
                               .first_record = state.first_record(),
                               .parameters_round = {},
                               .parameters_hash = state.parameters_hash()};
    if (state.parameters_round() >= 0) welcome.parameters_round = state.parameters_round();
    return welcome;
  }
  // False: it is not needed any more.
  bool put(Kind kind, std::int64_t round, std::span<const std::byte> bytes) {
    MissingRequest missing;
    missing.set_session(session_);
    missing.set_kind(kind);
    missing.set_round(round);
    missing.set_total(bytes.size());
    const MissingReply wanted = coordinator_.missing(missing, peer_, now());
    PRIDE_CHECK(wanted.refused().empty(), "missing: ", wanted.refused());
    count(missing, wanted);
    for (const std::uint32_t chunk : wanted.chunks()) {
      const auto part = bytes.subspan(chunk * kChunkBytes, chunk_bytes(bytes.size(), chunk));
      PutChunkRequest request;
      request.set_session(session_);
      request.set_kind(kind);
      request.set_round(round);
      request.set_total(bytes.size());
      request.set_chunk(chunk);
      request.set_hash(hash_bytes(part));
      request.set_data(text(part));
      const PutChunkReply reply = coordinator_.put_chunk(request, peer_, now());
      PRIDE_CHECK(reply.refused().empty(), "put: ", reply.refused());
      count(request, reply);
    }
    return !wanted.closed();
  }
  CoordinatorVote wait_for(std::int64_t round, bool abstains) {
    for (;;) {
      WaitRoundRequest request;
      request.set_session(session_);
      request.set_round(round);
      request.set_wait_ms(1000);
      request.set_abstains(abstains);
      std::promise<WaitRoundReply> answered;
      coordinator_.wait_round(request, peer_, now(),
                              [&](const WaitRoundReply& reply) { answered.set_value(reply); });
      const WaitRoundReply reply = answered.get_future().get();
      PRIDE_CHECK(reply.refused().empty(), "wait: ", reply.refused());
      count(request, reply);
      if (!reply.closed()) continue;
      return {.record = get(RECORD, round),
              .counted = reply.counted(),
              .why_not = reply.why_not(),
              .open_round = reply.state().open_round(),
              .wants_parameters = reply.wants_parameters()};
    }
  }
  std::vector<std::byte> get(Kind kind, std::int64_t round) {
    std::vector<std::byte> all;
    for (std::uint32_t chunk = 0;; ++chunk) {
      GetChunkRequest request;
      request.set_session(session_);
      request.set_kind(kind);
      request.set_round(round);
      request.set_chunk(chunk);
      const GetChunkReply reply = coordinator_.get_chunk(request, peer_, now());
      PRIDE_CHECK(reply.refused().empty(), "get: ", reply.refused());
      count(request, reply);
      const auto part = std::as_bytes(std::span(reply.data()));
      all.insert(all.end(), part.begin(), part.end());
      if (all.size() >= reply.total()) return all;
    }
  }

  Coordinator& coordinator_;
  std::string name_, session_;
  int number_ = 0;
  Peer peer_{.certificate = "", .address = "192.0.2.1:1000"};
  Traffic traffic_;
};

}  // namespace pride::coord::test
