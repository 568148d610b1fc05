// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/client.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <type_traits>
#include <utility>

#include "coord/refusals.h"
#include "coord/run_message.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using namespace std::chrono_literals;
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr auto kLeave = 1s;  // deadline of the last call
constexpr auto kMoment = 100ms;
constexpr auto kAskAgainFor = 90s;               // wait after too many registrations
constexpr std::chrono::milliseconds kPoll = 5s;  // longest wait of one call for a round

std::size_t chunks_of(std::size_t total) { return (total + kChunk - 1) / kChunk; }

std::span<const std::byte> chunk_of(std::span<const std::byte> bytes, std::size_t i) {
  return bytes.subspan(i * kChunk, std::min(kChunk, bytes.size() - i * kChunk));
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Reply>
bool is_unknown_session(const Reply& reply) {
  if constexpr (std::is_same_v<Reply, VoteReply>) {
    return reply.why().starts_with(kRegisterAgain);
  } else {
    return reply.refused().starts_with(kRegisterAgain);
  }
}

}  // namespace

Client::Client(const CoordinatorAddress& address, std::string name, WorkerSecret secret)
    : name_(std::move(name)),
      secret_(std::move(secret)),
      calls_(address.host_port, worker_credentials(address.certificates), address.patience,
             address.on_notice) {}

Client::~Client() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  calls_.stop("this client has been closed");
  if (!beats_.joinable()) return;  // this client never joined
  beats_.join();
  calls_.resume();
  leave();
}

// One attempt: without a reply the coordinator counts the worker as lost.
void Client::leave() {
  try {
    HeartbeatRequest request;
    request.set_session(session_);
    request.set_round(round_);
    request.set_leaves(true);
    HeartbeatReply reply;
    calls_.try_once(&Stub::Heartbeat, request, kLeave, reply);
  } catch (const Error&) {
  }
}

void Client::refuse(const std::string& what, const std::string& why) const {
  if (why.empty()) return;
  throw CommError(concat("coordinator ", calls_.host_port(), ", ", what, ": ", why));
}

// --- Registration. ---

RegisterRequest Client::registration() const {
  RegisterRequest request;
  request.set_protocol(kProtocol);
  request.set_name(name_);
  request.set_secret(secret_.bytes);
  request.set_run(run_);
  request.set_vote_weight(vote_weight_);
  return request;
}

void Client::take_registration(const RegisterReply& reply) {
  if (!reply.refused().empty()) return;
  const std::lock_guard lock(mutex_);
  session_ = reply.session();
  number_ = reply.number();
  if (reply.heartbeat_ms() > 0) beat_every_ = std::chrono::milliseconds(reply.heartbeat_ms());
}

RegisterReply Client::send_registration() {
  const std::string what = "registration of worker " + name_;
  for (Clock::time_point until = Clock::now() + kAskAgainFor;;) {
    RegisterReply reply = calls_.call(&Stub::Register, registration(), what, kLong);
    take_registration(reply);
    if (reply.refused().find(kTooOften) == std::string::npos || Clock::now() >= until) return reply;
    calls_.pause(1s);
  }
}

std::string Client::session() {
  const std::lock_guard lock(mutex_);
  return session_;
}

CoordinatorWelcome Client::welcome(const RunState& state) {
  length_ = {.steps = state.steps(), .last_step = state.last_step()};
  CoordinatorWelcome welcome;
  welcome.open_round = state.open_round();
  welcome.first_record = state.first_record();
  if (state.parameters_round() >= 0) welcome.parameters_round = state.parameters_round();
  welcome.parameters_hash = state.parameters_hash();
  const std::lock_guard lock(mutex_);
  welcome.number = static_cast<int>(number_);
  return welcome;
}

CoordinatorWelcome Client::join(const RunDescription& run, int vote_weight) {
  PRIDE_CHECK(vote_weight >= 1, "worker ", name_, ": a vote of weight ", vote_weight);
  RegisterReply reply;
  {
    const std::lock_guard lock(registering_);
    run_ = encode_run(run);
    vote_weight_ = static_cast<std::uint32_t>(vote_weight);
    reply = send_registration();
  }
  const bool other_secret = reply.refused().find(kOtherSecret) != std::string::npos;
  PRIDE_CHECK(reply.refused().empty(), "coordinator ", calls_.host_port(), " refuses worker ",
              name_, ": ", reply.refused(), other_secret ? "; this one's is " + secret_.where : "");
  if (!beats_.joinable()) beats_ = std::thread([this] { beat(); });
  return welcome(reply.state());
}

template <typename Request, typename Reply>
Reply Client::ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                  Request& request, const std::string& what, std::chrono::milliseconds deadline) {
  for (;;) {
    const std::string session = this->session();
    request.set_session(session);
    Reply reply = calls_.call(method, request, what, deadline);
    if (!is_unknown_session(reply)) return reply;
    const std::lock_guard lock(registering_);
    // the other thread may have registered already
    if (session == this->session()) {
      refuse("registration of worker " + name_ + " again", send_registration().refused());
    }
  }
}

CoordinatorWelcome Client::look() {
  HeartbeatRequest request;
  {
    const std::lock_guard lock(mutex_);
    request.set_round(round_);
  }
  const HeartbeatReply reply = ask(&Stub::Heartbeat, request, "heartbeat", kShort);
  refuse("heartbeat", reply.refused());
  return welcome(reply.state());
}

// If it fails, the worker's next call reports the reason.
void Client::beat_once(const HeartbeatRequest& request) {
  try {
    HeartbeatReply reply;
    if (!calls_.try_once(&Stub::Heartbeat, request, kShort, reply)) return calls_.pause(kMoment);
    if (!is_unknown_session(reply)) return;
    const std::lock_guard alone(registering_);
    if (request.session() != session()) return;
    RegisterReply registered;  // once: the worker's thread repeats it and gives notice
    if (calls_.try_once(&Stub::Register, registration(), kLong, registered)) {
      take_registration(registered);
    }
  } catch (const Error&) {
  }
}

// A separate thread, so that a worker that computes for minutes stays live.
void Client::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, beat_every_, [this] { return stopping_; })) {
    HeartbeatRequest request;
    request.set_session(session_);
    request.set_round(round_);
    lock.unlock();
    beat_once(request);
    lock.lock();
  }
}

// --- Uploads and downloads. ---

Client::Uploaded Client::upload(const Upload& upload, const std::string& what) {
  MissingRequest missing;
  missing.set_kind(upload.kind);
  missing.set_round(upload.round);
  missing.set_total(upload.bytes.size());
  const MissingReply wanted = ask(&Stub::Missing, missing, what, kShort);
  if (wanted.closed() || !wanted.refused().empty()) return {wanted.closed(), wanted.refused()};
  PutChunkRequest put;
  put.set_kind(upload.kind);
  put.set_round(upload.round);
  put.set_total(upload.bytes.size());
  for (const std::uint32_t i : wanted.chunks()) {
    PRIDE_CHECK(i < chunks_of(upload.bytes.size()), what, ": chunk ", i, " is requested, of ",
                chunks_of(upload.bytes.size()));
    const std::span<const std::byte> bytes = chunk_of(upload.bytes, i);
    put.set_chunk(i);
    put.set_hash(hash_bytes(bytes));
    put.set_data(text_of(bytes));
    const PutChunkReply reply = ask(&Stub::PutChunk, put, what, kLong);
    if (reply.closed() || !reply.refused().empty()) return {reply.closed(), reply.refused()};
  }
  return {};
}

std::vector<std::byte> Client::download(Kind kind, std::int64_t round, const std::string& what) {
  std::vector<std::byte> all;
  for (std::size_t i = 0; i == 0 || i < chunks_of(all.size()); ++i) {
    GetChunkRequest request;
    request.set_kind(kind);
    request.set_round(round);
    request.set_chunk(static_cast<std::uint32_t>(i));
    const GetChunkReply reply = ask(&Stub::GetChunk, request, what, kLong);
    refuse(what, reply.refused());
    if (i == 0) all.resize(reply.total());
    const std::size_t size = std::min(kChunk, all.size() - i * kChunk);
    if (reply.total() != all.size() || reply.data().size() != size ||
        hash_bytes(bytes_of(reply.data())) != reply.hash()) {
      throw CommError(concat("coordinator ", calls_.host_port(), ", ", what, ": chunk ", i, " of ",
                             all.size(), " bytes is damaged or has another size"));
    }
    std::memcpy(all.data() + i * kChunk, reply.data().data(), size);
  }
  return all;
}

std::vector<std::byte> Client::record(std::int64_t round) {
  return download(RECORD, round, concat("record of round ", round));
}

void Client::get_parameters(std::int64_t parameters_round, std::span<float> params) {
  const std::string what = concat("parameters before round ", parameters_round);
  const std::vector<std::byte> bytes = download(PARAMETERS, parameters_round, what);
  if (bytes.size() != params.size_bytes()) {
    refuse(what, concat(bytes.size(), " bytes instead of ", params.size_bytes()));
  }
  std::memcpy(params.data(), bytes.data(), bytes.size());
}

void Client::put_parameters(std::int64_t before_round, std::uint64_t hash,
                            std::span<const float> params) {
  const std::string what = concat("parameters before round ", before_round);
  const Upload all{.kind = PARAMETERS, .round = before_round, .bytes = std::as_bytes(params)};
  Uploaded there = upload(all, what);
  // two workers began at once, and the other sends its parameters: wait for them. If the other
  // dies, the coordinator accepts this worker's
  while (there.closed && before_round == 0 && !look().parameters_round) {
    calls_.pause(kMoment);
    there = upload(all, what);
  }
  // a refusal is not this worker's fault: a restarted coordinator has lost its request
  if (there.closed || !there.refused.empty()) return;
  OfferParametersRequest request;
  request.set_before_round(before_round);
  request.set_total(all.bytes.size());
  request.set_hash(hash_bytes(all.bytes));
  request.set_params_hash(hash);
  ask(&Stub::OfferParameters, request, what, kLong);
}

// --- A round. ---

VoteReply Client::send_vote(const Ballot& ballot, std::uint64_t hash) {
  const std::string what = concat("ballot of round ", ballot.round);
  VoteRequest request;
  request.set_round(ballot.round);
  request.set_total(ballot.frames.size());
  request.set_hash(hash);
  request.set_params_hash(ballot.params_hash);
  request.set_scalars(text_of(ballot.scalars));
  if (ballot.loss) request.set_loss(*ballot.loss);
  for (;;) {
    const Upload frames{.kind = BALLOT, .round = ballot.round, .bytes = ballot.frames};
    refuse(what, upload(frames, what).refused);
    VoteReply reply = ask(&Stub::Vote, request, what, kLong);
    if (reply.status() != VoteReply::INCOMPLETE) return reply;
  }
}

WaitRoundReply Client::wait_for(std::int64_t round, bool abstains) {
  const std::string what = concat("wait for round ", round);
  WaitRoundRequest request;
  request.set_round(round);
  request.set_abstains(abstains);
  const auto wait = std::min(kPoll, calls_.patience() / 2);  // the patience ends a call
  request.set_wait_ms(static_cast<std::uint32_t>(wait.count()));
  WaitRoundReply reply = ask(&Stub::WaitRound, request, what, wait + kShort);
  refuse(what, reply.refused());
  return reply;
}

void Client::set_round(std::int64_t round) {
  const std::lock_guard lock(mutex_);
  round_ = round;
}

CoordinatorVote Client::result_of(std::int64_t round, const WaitRoundReply& reply) {
  CoordinatorVote vote;
  vote.record = record(round);
  if (hash_bytes(vote.record) != reply.hash()) {
    refuse(concat("record of round ", round), "it is damaged");
  }
  vote.counted = reply.counted();
  vote.why_not = reply.why_not();
  vote.open_round = welcome(reply.state()).open_round;
  vote.wants_parameters = reply.wants_parameters();
  return vote;
}

CoordinatorVote Client::wait(std::int64_t round) {
  set_round(round);
  for (;;) {
    const WaitRoundReply reply = wait_for(round, true);
    if (!reply.closed()) continue;
    round_ended_ = Clock::now();
    return result_of(round, reply);
  }
}

// Of a ballot that began at that time.
void Client::count_lost(std::int64_t round, const CoordinatorVote& vote, Clock::time_point began) {
  using Seconds = std::chrono::duration<double>;
  const auto before = std::exchange(round_ended_, Clock::now());
  if (!lost_.add(!vote.counted)) return;
  std::string why = vote.why_not;
  if (before && (why == kLate || why == kLongAgo)) {
    const auto rounds = static_cast<double>(std::max<std::int64_t>(vote.open_round - round, 1));
    std::ostringstream text;
    text
        << std::setprecision(3) << "late: this worker computes for "
        << Seconds(began - *before).count() << " s, a round takes "
        << Seconds(*round_ended_ - *before).count() / rounds
        << " s. Take fewer samples a step, or start `pride serve` with --grace above the first (by "
           "itself the window is at most --most-grace) or --min-workers with all workers";
    why = text.str();
  }
  calls_.notice(concat(lost_.share(), " ballots of this worker, up to round ", round,
                       ", were not counted, the last one because: ", why));
}

CoordinatorVote Client::vote(const Ballot& ballot) {
  const Clock::time_point began = Clock::now();
  set_round(ballot.round);
  const std::uint64_t hash = hash_bytes(ballot.frames);
  for (;;) {  // a restarted coordinator has no ballots: send this one again
    const VoteReply sent = send_vote(ballot, hash);
    if (sent.status() == VoteReply::AHEAD)
      refuse(concat("ballot of round ", ballot.round), sent.why());
    const bool refused = sent.status() == VoteReply::REFUSED;
    WaitRoundReply reply;
    do {
      reply = wait_for(ballot.round, refused);
    } while (!reply.closed() && (reply.has_ballot() || refused));
    if (!reply.closed()) continue;
    CoordinatorVote vote = result_of(ballot.round, reply);
    if (!vote.counted && vote.why_not.empty()) vote.why_not = sent.why();
    count_lost(ballot.round, vote, began);
    return vote;
  }
}

}  // namespace pride::coord
