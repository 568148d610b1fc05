// Coordinator: rounds of ballots among workers that come and go, without a network and a clock.
//
// One function for each call of coord.proto. All may be called by several threads at once; time is
// an argument, and only grows. What takes long (checks, votes, fsync) runs without the lock that
// other calls need. docs/design/coordinator.md
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "coord/coord.pb.h"
#include "coord/events.h"
#include "coord/options.h"
#include "coord/serving.h"

namespace pride::coord {

class Coordinator {
 public:
  // Runs a task later, tasks one after the other, in order. A WorkPool of one thread, or in tests
  // the caller.
  using Run = std::function<void(std::function<void()> task)>;
  using Answer = std::function<void(const WaitRoundReply&)>;

  // Reads the journal in options.folder, or begins one, and locks the folder. Tasks that `run` was
  // given must be over before the coordinator is destroyed. `observer` must outlive it.
  // Throws DataError, naming file and offset, if the journal is damaged or belongs to another run.
  Coordinator(CoordinatorOptions options, MakeServing make_serving, Run run, Observer& observer,
              Time now);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  RegisterReply register_worker(const RegisterRequest& request, const Peer& peer, Time now);
  HeartbeatReply heartbeat(const HeartbeatRequest& request, const Peer& peer, Time now);
  MissingReply missing(const MissingRequest& request, const Peer& peer, Time now);
  PutChunkReply put_chunk(const PutChunkRequest& request, const Peer& peer, Time now);
  VoteReply vote(const VoteRequest& request, const Peer& peer, Time now);
  OfferParametersReply offer_parameters(const OfferParametersRequest& request, const Peer& peer,
                                        Time now);
  GetChunkReply get_chunk(const GetChunkRequest& request, const Peer& peer, Time now);

  // `answer` is called once: at once, when the round is closed, when the time is over (tick), or at
  // shutdown; by whichever thread, without the lock. A second call of a session answers the first.
  void wait_round(const WaitRoundRequest& request, const Peer& peer, Time now, Answer answer);

  // Time-outs: deaths, ends of grace windows, waiters. To be called when next_event() has come;
  // later than that is late, sooner is harmless.
  void tick(Time now);
  std::optional<Time> next_event() const;

  // All that an operator has ordered: what is not in it any more is as before. Lengths hold from
  // the next round on. Returns why it was refused, and then nothing was changed; empty: it holds.
  std::string obey(const Orders& orders, Time now);

  // Refuses everything from now on, and answers all that wait.
  void shutdown();

  Status status(Time now) const;

  struct Impl;  // coordinator_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::coord
