// gRPC's calls: each is checked, parsed and passed to the coordinator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "coord/certificates/checker.h"
#include "coord/coord.grpc.pb.h"
#include "coord/rpc/admission.h"
#include "coord/rpc/server.h"
#include "coord/work_pool.h"

namespace pride::coord {

template <typename Base>
using RawCalls = CoordinatorCalls::WithRawCallbackMethod_Register<
    CoordinatorCalls::WithRawCallbackMethod_Heartbeat<
        CoordinatorCalls::WithRawCallbackMethod_Missing<
            CoordinatorCalls::WithRawCallbackMethod_PutChunk<
                CoordinatorCalls::WithRawCallbackMethod_Vote<
                    CoordinatorCalls::WithRawCallbackMethod_OfferParameters<
                        CoordinatorCalls::WithRawCallbackMethod_WaitRound<
                            CoordinatorCalls::WithRawCallbackMethod_GetChunk<Base>>>>>>>>;

class Service final : public RawCalls<CoordinatorCalls::Service> {
 public:
  using Context = grpc::CallbackServerContext;
  using Buffer = grpc::ByteBuffer;
  using Reactor = grpc::ServerUnaryReactor;

  // Called when a call of `bytes` bytes gets a reply without a refusal.
  using OnAccepted = std::function<void(const Peer&, std::size_t bytes)>;

  // `checker` null: no certificates.
  Service(const ServerOptions& options, Coordinator& coordinator,
          std::shared_ptr<CertificateChecker> checker, OnAccepted on_accepted);

  Reactor* Register(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* Heartbeat(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* Missing(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* PutChunk(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* Vote(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* OfferParameters(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* WaitRound(Context* context, const Buffer* in, Buffer* out) override;
  Reactor* GetChunk(Context* context, const Buffer* in, Buffer* out) override;

  // Ends the calls whose replies the workers do not read.
  void cut_slow_readers(Admission::Time now);

 private:
  class Call;

  std::string refusal_of(Call& call, const Buffer& in, std::size_t most_bytes);
  template <typename Request, typename Handle>
  Reactor* handle(const char* name, Context* context, const Buffer* in, Buffer* out,
                  std::size_t most_bytes, Handle handle);
  template <typename Request, typename Reply>
  Reactor* handle(const char* name, Context* context, const Buffer* in, Buffer* out,
                  Reply (Coordinator::*function)(const Request&, const Peer&, Admission::Time));
  void refuse(Call& call, grpc::StatusCode code, const std::string& why) const;
  void forget(Call& call);

  const ServerOptions& options_;
  Coordinator& coordinator_;
  const std::shared_ptr<CertificateChecker> checker_;
  const OnAccepted on_accepted_;
  Admission admission_;
  std::recursive_mutex mutex_;  // guards calls_; recursive: ending a call may call forget()
  std::set<Call*> calls_;
  WorkPool pool_;
};

}  // namespace pride::coord
