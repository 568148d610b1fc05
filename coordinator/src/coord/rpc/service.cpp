// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/service.h"

#include <chrono>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include "coord/refusals.h"
#include "coord/rpc/address.h"
#include "coord/run_message.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

using Clock = std::chrono::steady_clock;
using grpc::StatusCode;

constexpr std::size_t kMostBytes = (std::size_t{1} << 20) + (std::size_t{64} << 10);
constexpr std::size_t kMostRegisterBytes = kMostRunBytes + (std::size_t{64} << 10);
constexpr int kThreads = 2;
constexpr std::size_t kMostTasks = 128;  // with a message each, of at most kMostRegisterBytes

// False: the bytes are not such a message.
template <typename Message>
bool parse(const grpc::ByteBuffer& in, Message& message) {
  grpc::ByteBuffer bytes = in;  // shares the bytes
  return grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok();
}

template <typename Message>
grpc::Status write(const Message& message, grpc::ByteBuffer& out) {
  bool own = false;
  return grpc::SerializationTraits<Message>::Serialize(message, &out, &own);
}

template <typename Reply>
const std::string& refusal_in(const Reply& reply) {
  if constexpr (std::is_same_v<Reply, VoteReply>) {
    return reply.why();
  } else {
    return reply.refused();
  }
}

std::string certificate_of(const grpc::CallbackServerContext& context) {
  const auto found = context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.empty() ? "" : std::string(found.front().data(), found.front().size());
}

}  // namespace

// One call in progress. When gRPC is done with it, it leaves admission_ and is deleted.
class Service::Call final : public Reactor {
 public:
  Call(Service& service, const char* name, Context& context)
      : name(name), peer{"", peer_address(context.peer())}, service_(service), context_(context) {}

  void answer(const grpc::Status& status) {
    answered_ = Clock::now().time_since_epoch().count();
    if (!caller.empty()) service_.admission_.answered(caller);
    Finish(status);
  }
  void OnDone() override {
    service_.forget(*this);
    delete this;
  }

  bool is_read_slowly(Clock::time_point now, std::chrono::seconds limit) const {
    const Clock::rep at = answered_;
    return at != 0 && now - Clock::time_point(Clock::duration(at)) > limit;
  }
  void cut() { context_.TryCancel(); }
  std::string certificate() const { return certificate_of(context_); }

  const char* const name;
  Peer peer;
  std::string caller;  // set: admission_ counts the call

 private:
  Service& service_;
  Context& context_;
  std::atomic<Clock::rep> answered_ = 0;
};

Service::Service(const ServerOptions& options, Coordinator& coordinator,
                 std::shared_ptr<CertificateChecker> checker, OnAccepted on_accepted)
    : options_(options),
      coordinator_(coordinator),
      checker_(std::move(checker)),
      on_accepted_(std::move(on_accepted)),
      admission_(options.limits),
      pool_(kThreads, kMostTasks) {}

void Service::forget(Call& call) {
  if (!call.caller.empty()) admission_.leave(call.caller);
  const std::lock_guard lock(mutex_);
  calls_.erase(&call);
}

void Service::refuse(Call& call, StatusCode code, const std::string& why) const {
  if (options_.on_refused) {
    options_.on_refused({call.name, call.peer.certificate, call.peer.address, why});
  }
  call.answer({code, why});
}

void Service::cut_slow_readers(Admission::Time now) {
  const std::lock_guard lock(mutex_);
  const std::vector<Call*> all(calls_.begin(), calls_.end());
  for (Call* const call : all) {
    if (!calls_.contains(call) || !call->is_read_slowly(now, options_.slow_reader)) continue;
    if (options_.on_refused) {
      options_.on_refused({call->name, call->peer.certificate, call->peer.address,
                           concat("slow reader: it did not read its reply within ",
                                  options_.slow_reader.count(), " s")});
    }
    call->cut();
  }
}

// Empty: the call is allowed. Sets the caller.
std::string Service::refusal_of(Call& call, const Buffer& in, std::size_t most_bytes) {
  if (in.Length() > most_bytes) {
    return concat("oversized: a message of ", in.Length(), " bytes; ", most_bytes, " at most");
  }
  const std::string caller = checker_ ? call.peer.certificate : call.peer.address;
  const std::string why = admission_.enter(caller, Clock::now());
  if (why.empty()) call.caller = caller;
  return why.empty() ? "" : "flood: " + why;
}

template <typename Request, typename Handle>
Service::Reactor* Service::handle(const char* name, Context* context, const Buffer* in, Buffer* out,
                                  std::size_t most_bytes, Handle handle) {
  auto* const call = new Call(*this, name, *context);
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  if (checker_) {
    const Verdict verdict = checker_->check(call->certificate(), std::chrono::system_clock::now());
    call->peer.certificate = verdict.name;
    call->peer.certificate_until = verdict.until;
    if (!verdict.refused.empty()) {
      refuse(*call, StatusCode::UNAUTHENTICATED, verdict.refused);
      return call;
    }
  }
  if (const std::string why = refusal_of(*call, *in, most_bytes); !why.empty()) {
    refuse(*call, StatusCode::RESOURCE_EXHAUSTED, why);
    return call;
  }
  auto request = std::make_shared<Request>();
  if (!parse(*in, *request)) {
    // a process that was stopped (SIGSTOP) and continues finds cancelled calls
    if (!in->Valid() || context->IsCancelled()) {
      refuse(*call, StatusCode::CANCELLED, "cancelled: the call ended before its message came");
    } else {
      refuse(*call, StatusCode::INVALID_ARGUMENT, "malformed: not a message of this call");
    }
    return call;
  }
  const auto send = [this, call, out, bytes = in->Length()](const auto& reply) {
    const std::string& why = refusal_in(reply);
    if (why.empty()) on_accepted_(call->peer, bytes);
    // workers retry: the coordinator may be back soon, from its journal
    const bool over = why.starts_with(kStops) || why.starts_with(kFailed);
    call->answer(over ? grpc::Status(StatusCode::UNAVAILABLE, "the coordinator ends")
                      : write(reply, *out));
  };
  const bool taken = pool_.add([this, call, request, handle, send] {
    try {
      handle(*request, call->peer, send);
    } catch (const std::exception& error) {
      refuse(*call, StatusCode::INTERNAL, error.what());
    }
  });
  if (!taken)
    refuse(*call, StatusCode::RESOURCE_EXHAUSTED, "too many calls are waiting; try again");
  return call;
}

// For a function of the coordinator that returns the reply.
template <typename Request, typename Reply>
Service::Reactor* Service::handle(const char* name, Context* context, const Buffer* in, Buffer* out,
                                  Reply (Coordinator::*function)(const Request&, const Peer&,
                                                                 Admission::Time)) {
  const bool is_first = std::is_same_v<Request, RegisterRequest>;
  return handle<Request>(name, context, in, out, is_first ? kMostRegisterBytes : kMostBytes,
                         [this, function](const auto& request, const Peer& peer, const auto& send) {
                           send((coordinator_.*function)(request, peer, Clock::now()));
                         });
}

Service::Reactor* Service::Register(Context* context, const Buffer* in, Buffer* out) {
  return handle("Register", context, in, out, &Coordinator::register_worker);
}
Service::Reactor* Service::Heartbeat(Context* context, const Buffer* in, Buffer* out) {
  return handle("Heartbeat", context, in, out, &Coordinator::heartbeat);
}
Service::Reactor* Service::Missing(Context* context, const Buffer* in, Buffer* out) {
  return handle("Missing", context, in, out, &Coordinator::missing);
}
Service::Reactor* Service::PutChunk(Context* context, const Buffer* in, Buffer* out) {
  return handle("PutChunk", context, in, out, &Coordinator::put_chunk);
}
Service::Reactor* Service::Vote(Context* context, const Buffer* in, Buffer* out) {
  return handle("Vote", context, in, out, &Coordinator::vote);
}
Service::Reactor* Service::OfferParameters(Context* context, const Buffer* in, Buffer* out) {
  return handle("OfferParameters", context, in, out, &Coordinator::offer_parameters);
}
Service::Reactor* Service::GetChunk(Context* context, const Buffer* in, Buffer* out) {
  return handle("GetChunk", context, in, out, &Coordinator::get_chunk);
}
Service::Reactor* Service::WaitRound(Context* context, const Buffer* in, Buffer* out) {
  return handle<WaitRoundRequest>("WaitRound", context, in, out, kMostBytes,
                                  [this](const auto& request, const Peer& peer, const auto& send) {
                                    coordinator_.wait_round(request, peer, Clock::now(), send);
                                  });
}

}  // namespace pride::coord
