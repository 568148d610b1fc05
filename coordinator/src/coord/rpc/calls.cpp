// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/calls.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "coord/certificates/certificate_files.h"
#include "coord/refusals.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{100};
constexpr milliseconds kLongestWait{1000};
constexpr milliseconds kLeast{2000};  // of an attempt: a TLS handshake on a busy machine
constexpr milliseconds kSlice{100};   // until a pause sees stop()

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  // also the time of an attempt, with its TLS handshake: as long as the server allows
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // pings are sent only during a call, not while a worker computes
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 15'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

// Errors that another attempt cannot fix. Wrong dates can be fixed, by setting a clock or by a new
// certificate. For a server's certificate libcrypto only reports "certificate verify failed", also
// if it has expired.
bool is_final(const grpc::Status& status) {
  const std::string why = status.error_message();
  const auto says = [&](std::string_view part) { return why.find(part) != why.npos; };
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return !says(kNotYetValid) && !says(kExpired);
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::UNIMPLEMENTED:
      return true;
    default:
      break;
  }
  return says("is not in peer certificate");
}

// gRPC's text if a connection ended before a refusal: the reason is unknown.
constexpr const char* kCutShort = "tcp handshaker shutdown";

std::string reason_of(const grpc::Status& status, bool answered) {
  std::string why = status.error_message();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return answered
               ? "it no longer answers: it is stopped or overloaded, or the network is cut"
               : "it does not answer: does another program listen there? Is it stopped? Does a "
                 "firewall block it?";
  }
  if (why.find("certificate verify failed") != why.npos) {
    return "its certificate is not of this project's CA, or has expired";
  }
  if (why.find("is not in peer certificate") != why.npos) {
    return "its certificate is not for this name (`pride certs server --name`): " + why;
  }
  if (why.find("Connection refused") != why.npos) {
    return "nothing listens there (connection refused): is `pride serve` running, with this "
           "--listen?";
  }
  const bool no_handshake =
      why.find("handshaker shutdown") != why.npos && why.find(kCutShort) == why.npos;
  if (why.find("Socket closed") != why.npos && answered) return "the connection broke: " + why;
  if (no_handshake || why.find("Socket closed") != why.npos) {
    return why + " (does one side use certificates, and the other not? has this worker's " +
           "certificate been revoked? the coordinator's log says why)";
  }
  return why;
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> worker_credentials(const std::string& folder) {
  if (folder.empty()) return grpc::InsecureChannelCredentials();
  const CertificateFiles files = read_certificate_files(folder);
  return grpc::SslCredentials(
      {.pem_root_certs = files.ca, .pem_private_key = files.key, .pem_cert_chain = files.cert});
}

Calls::Calls(std::string host_port, std::shared_ptr<grpc::ChannelCredentials> credentials,
             milliseconds patience, Notice notice)
    : host_port_(std::move(host_port)),
      credentials_(std::move(credentials)),
      patience_(patience),
      notice_(std::move(notice)) {}

bool Calls::is_stopped() {
  const std::lock_guard lock(mutex_);
  return stopped_ != nullptr;
}

std::shared_ptr<Stub> Calls::stub(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (stopped_ != nullptr) {
    throw CommError(concat("coordinator ", host_port_, ", ", what, ": ", stopped_));
  }
  if (stub_ == nullptr) {
    channel_ = grpc::CreateCustomChannel(host_port_, credentials_, channel_arguments());
    stub_ = CoordinatorCalls::NewStub(channel_);
  }
  return stub_;
}

void Calls::renew(const std::shared_ptr<Stub>& hanging) {
  const std::lock_guard lock(mutex_);
  if (stub_ == hanging) stub_.reset();
}

Calls::Active::Active(Calls& calls, grpc::ClientContext& context)
    : calls_(calls), context_(context) {
  const std::lock_guard lock(calls_.mutex_);
  calls_.active_.insert(&context_);
  if (calls_.stopped_ != nullptr) context_.TryCancel();
}

Calls::Active::~Active() {
  const std::lock_guard lock(calls_.mutex_);
  calls_.active_.erase(&context_);
}

void Calls::stop(const char* why) {
  const std::lock_guard lock(mutex_);
  stopped_ = why;
  for (grpc::ClientContext* const context : active_) context->TryCancel();
}

void Calls::resume() {
  const std::lock_guard lock(mutex_);
  stopped_ = nullptr;
}

milliseconds Calls::deadline_of(const Tries& tries, milliseconds most) const {
  if (answered_ && most >= kLong) return most;
  const auto tried = std::chrono::duration_cast<milliseconds>(Clock::now() - tries.began);
  return std::min(most, std::max(kLeast, patience_ - tried));
}

void Calls::wait_after(const grpc::Status& status, Tries& tries) {
  if (is_stopped()) return;  // the next attempt throws
  const std::string where = concat("coordinator ", host_port_, ", ", tries.what, ": ");
  if (is_final(status)) throw CommError(where + reason_of(status, answered_));
  if (tries.reason.empty() || (status.error_message().find(kCutShort) == std::string::npos &&
                               status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED)) {
    tries.reason = reason_of(status, answered_);
  }
  const Clock::time_point now = Clock::now();
  // counted from the first failure: waiting for a round's result is no outage
  if (tries.failed == 0 && answered_ &&
      status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
    tries.began = now;
    tries.next_notice = now + kFirstNotice;
  }
  const auto tried = std::chrono::duration_cast<milliseconds>(now - tries.began);
  const int attempt = tries.failed++;
  if (tried >= patience_) {
    throw CommError(concat(where, "no answer in ", tried.count() / 1000, " s and ", tries.failed,
                           " attempts: ", tries.reason));
  }
  if (notice_ && now >= tries.next_notice) {
    tries.next_notice = now + kNextNotice;
    notice_(concat("still trying ", host_port_, " (", tries.what, "), ",
                   (patience_ - tried).count() / 1000, " s left: ", tries.reason));
  }
  const auto wait = std::min(kFirstWait * (1 << std::min(attempt, 5)), kLongestWait);
  pause(std::min(wait, patience_ - tried));
}

// gRPC reads and writes in threads that call it. While it connects, calls fail at once. If this
// thread slept, no thread would drive the TLS handshake.
void Calls::pause(milliseconds wait) {
  std::shared_ptr<grpc::Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  const bool connects = channel != nullptr && channel->GetState(false) != GRPC_CHANNEL_READY;
  for (auto left = wait; left.count() > 0 && !is_stopped(); left -= kSlice) {
    const milliseconds slice = std::min(left, kSlice);
    if (!connects) {
      std::this_thread::sleep_for(slice);
    } else if (channel->WaitForConnected(std::chrono::system_clock::now() + slice)) {
      return;
    }
  }
}

void Calls::count_sent(std::size_t bytes) {
  bytes_sent_ += bytes;
  ++sent_;
}

void Calls::count_received(std::size_t bytes) {
  bytes_received_ += bytes;
  ++received_;
}

Traffic Calls::traffic() const {
  return {.bytes_sent = bytes_sent_,
          .bytes_received = bytes_received_,
          .messages_sent = sent_,
          .messages_received = received_};
}

}  // namespace pride::coord
