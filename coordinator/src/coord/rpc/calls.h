// Calls to a coordinator, repeated until there is a reply, and the bytes of their messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "coord/coord.grpc.pb.h"
#include "pride/communicator.h"
#include "pride/coord/client.h"

namespace pride::coord {

using Stub = CoordinatorCalls::Stub;

inline constexpr std::chrono::seconds kShort{20};  // deadline of a call that carries little
inline constexpr std::chrono::seconds kLong{120};  // of a call with a chunk: 70 kbit/s are enough

// The credentials of a worker's side. Throws InvalidArgument if files of the folder are missing or
// wrong.
std::shared_ptr<grpc::ChannelCredentials> worker_credentials(const std::string& folder);

// One connection, renewed if it hangs. Several threads may call.
class Calls {
 public:
  using Notice = std::function<void(const std::string&)>;

  // `notice` is that of CoordinatorAddress, for call().
  Calls(std::string host_port, std::shared_ptr<grpc::ChannelCredentials> credentials,
        std::chrono::milliseconds patience, Notice notice);

  // Repeats the call, each attempt with this deadline, until there is a reply. Throws CommError,
  // naming the coordinator and `what`, if the patience ends or the coordinator refuses. The
  // patience also ends an attempt, except a kLong one after the first reply: a chunk may take
  // longer.
  template <typename Request, typename Reply>
  Reply call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
             const Request& request, const std::string& what, std::chrono::milliseconds deadline);

  // One attempt. False: there was no reply.
  template <typename Request, typename Reply>
  bool try_once(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                const Request& request, std::chrono::milliseconds deadline, Reply& reply);

  // Cancels the calls of all threads. Later calls throw CommError with this reason until resume().
  void stop(const char* why);
  void resume();

  // Waits before another attempt: `wait`, or less if the connection is ready sooner, or after
  // stop().
  void pause(std::chrono::milliseconds wait);

  // A line for the user.
  void notice(const std::string& text) const {
    if (notice_) notice_(text);
  }

  Traffic traffic() const;
  std::chrono::milliseconds patience() const { return patience_; }
  const std::string& host_port() const { return host_port_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kFirstNotice{5}, kNextNotice{10};

  // A call in flight: stop() cancels it.
  class Active {
   public:
    Active(Calls& calls, grpc::ClientContext& context);
    ~Active();
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;

   private:
    Calls& calls_;
    grpc::ClientContext& context_;
  };

  bool is_stopped();
  std::shared_ptr<Stub> stub(const std::string& what);
  void renew(const std::shared_ptr<Stub>& hanging);
  // Attempts at one call.
  struct Tries {
    const std::string& what;
    Clock::time_point began = Clock::now(), next_notice = began + kFirstNotice;
    int failed = 0;
    std::string reason = {};  // the last known reason of a failed attempt
  };
  std::chrono::milliseconds deadline_of(const Tries& tries, std::chrono::milliseconds most) const;
  void wait_after(const grpc::Status& status, Tries& tries);
  void count_sent(std::size_t bytes);
  void count_received(std::size_t bytes);
  template <typename Request, typename Reply>
  grpc::Status attempt(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                       const Request& request, const std::string& what,
                       std::chrono::milliseconds deadline, Reply& reply);

  const std::string host_port_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::chrono::milliseconds patience_;
  const Notice notice_;
  std::atomic<bool> answered_ = false;  // any call so far
  std::mutex mutex_;                    // guards the next four members
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<Stub> stub_;
  std::set<grpc::ClientContext*> active_;
  const char* stopped_ = nullptr;  // why; null: they are not
  std::atomic<std::uint64_t> bytes_sent_ = 0, bytes_received_ = 0, sent_ = 0, received_ = 0;
};

template <typename Request, typename Reply>
grpc::Status Calls::attempt(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Reply*),
                            const Request& request, const std::string& what,
                            std::chrono::milliseconds deadline, Reply& reply) {
  const std::shared_ptr<Stub> line = stub(what);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  const Active active(*this, context);
  count_sent(request.ByteSizeLong());
  const grpc::Status status = ((*line).*method)(&context, request, &reply);
  if (status.ok()) count_received(reply.ByteSizeLong());
  // after a silent cut all calls on this connection would run into their deadlines
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) renew(line);
  return status;
}

template <typename Request, typename Reply>
Reply Calls::call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                  const Request& request, const std::string& what,
                  std::chrono::milliseconds deadline) {
  for (Tries tries{.what = what};;) {
    Reply reply;
    const grpc::Status status = attempt(method, request, what, deadline_of(tries, deadline), reply);
    if (status.ok()) {
      answered_ = true;
      return reply;
    }
    wait_after(status, tries);
  }
}

template <typename Request, typename Reply>
bool Calls::try_once(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                     const Request& request, std::chrono::milliseconds deadline, Reply& reply) {
  return attempt(method, request, "last call", deadline, reply).ok();
}

}  // namespace pride::coord
