// Coordinator: rounds of ballots among workers that join and leave, without network and clock.
//
// One function for each call of coord.proto. All may be called by several threads at once; time is
// an argument and only grows. Slow work (checks, votes, fsync) runs without the lock that other
// calls need. coordinator/docs/design.md
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "coord/coord.pb.h"
#include "coord/events.h"
#include "coord/options.h"
#include "pride/serving.h"

namespace pride::coord {

class Coordinator {
 public:
  // Runs tasks later, sequentially and in order: a WorkPool of one thread, or in tests the caller.
  using Run = std::function<void(std::function<void()> task)>;
  using Answer = std::function<void(const WaitRoundReply&)>;

  // Reads the journal in options.folder, or begins one, and locks the folder. Tasks given to `run`
  // must end before the coordinator is destroyed. `observer` must outlive it. Throws DataError,
  // naming file and offset, if the journal is damaged or belongs to another run.
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

  // `answer` is called once, from any thread, without the lock: immediately, when the round closes,
  // at the time-out (tick), or at shutdown. If a session calls again, its first call gets a reply.
  void wait_round(const WaitRoundRequest& request, const Peer& peer, Time now, Answer answer);

  // Handles time-outs: silent workers, ends of grace windows, waiting calls. Call it at
  // next_event(). A later call delays these; an earlier one is harmless.
  void tick(Time now);
  std::optional<Time> next_event() const;

  // Replaces all of an operator's orders; missing ones are undone. Lengths hold from the next round
  // on. Returns the reason of a refusal, which changes nothing; empty: accepted.
  std::string obey(const Orders& orders, Time now);

  // Refuses all later calls, and replies to all waiting calls.
  void shutdown();

  Status status(Time now) const;

  struct Impl;  // coordinator_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::coord
