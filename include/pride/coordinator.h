// CoordinatorClient: a worker's line to a coordinator, in the place of ranks that it would know.
// SPDX-License-Identifier: Apache-2.0
//
// The papers' central server, for workers that come and go: a round is one exchange (a step, or the
// h-th of a method with local steps). Each worker sends a ballot, the frames that it would send to
// the servers of all shards; the coordinator serves those that it has when the round closes, and
// keeps the record: the result's frames, the voters, the scalars of the step. Every worker applies
// every record, in order, and so has the parameters of all others bit for bit, whether its own
// ballot was counted or not. docs/design/coordinator.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/optimizer.h"

namespace pride {

// What all workers of a run must have alike. The first worker's is the run's.
struct RunDescription {
  std::string method;
  std::map<std::string, std::string> options;  // all of the method's, defaults filled in
  std::vector<TensorSpec> tensors;
  // Of each group what the method has, defaults filled in, as the optimizer was made with it; no
  // lr, which changes over a run.
  std::vector<ParamGroup> groups = {};
  std::uint64_t bucket_coords = 0;  // buckets are those of one rank
  std::uint64_t seed = 0;           // of zeros, ties and stochastic rounding
  // Of the caller's program: a text that must be equal. Of lines "name=value" a refusal names the
  // first that differs.
  std::string settings;
};

struct Ballot {
  std::int64_t round = 0;
  std::uint64_t params_hash = 0;      // of what all workers have alike, before it: the parameters,
                                      // and with a method on the mean its shared state
  std::vector<std::byte> scalars;     // StepScalars of each group: equal for all voters of a round
  std::span<const std::byte> frames;  // bucket by bucket, part by part
  std::optional<double> loss;         // for the coordinator's status page
};

struct CoordinatorWelcome {
  int number = 0;                 // of this worker: rank in its frames, key of its random signs
  std::int64_t open_round = 0;    // the round that workers vote on now
  std::int64_t first_record = 0;  // the oldest record that can be had; open_round: none
  std::optional<std::int64_t> parameters_round;  // before which round they are; none: nobody has
                                                 // given any yet, and this worker is to
  std::uint64_t parameters_hash = 0;
};

struct CoordinatorVote {
  std::vector<std::byte> record;  // of the ballot's round, encoded (docs/wire_format.md)
  bool counted = false;           // the ballot is among its voters
  std::string why_not;            // "late", "other parameters than most", ...
  std::int64_t open_round = 0;    // when it was answered: above round + 1 if this worker is behind
  bool wants_parameters = false;  // those after this round are asked of this worker
};

// Of the run, from the open round on. 0: as this worker's settings say.
struct RunLength {
  std::int64_t steps = 0;      // the schedule of learning rates is of so many
  std::int64_t last_step = 0;  // after it the run is at its end: no round closes any more
};

// Calls block, with the time-outs and retries of the implementation, and throw CommError, naming
// the coordinator and the round, when it is not to be reached for longer or refuses this worker for
// good. One thread calls.
class CoordinatorClient {
 public:
  virtual ~CoordinatorClient() = default;

  // First, and after a break that the client could not mend. Throws InvalidArgument, with the
  // difference, if the run is another one.
  virtual CoordinatorWelcome join(const RunDescription& run, int vote_weight) = 0;

  // Sends the ballot and waits for the round's record.
  virtual CoordinatorVote vote(const Ballot& ballot) = 0;

  // Waits for the record of a round without a ballot: this worker has none.
  virtual CoordinatorVote wait(std::int64_t round) = 0;

  // Record of a round that is closed. REQUIRES: first_record <= round < open_round.
  virtual std::vector<std::byte> record(std::int64_t round) = 0;

  // The newest parameters, padding left in, then each shared buffer of the method's state: those
  // before round `parameters_round`.
  virtual void get_parameters(std::int64_t parameters_round, std::span<float> params) = 0;
  virtual void put_parameters(std::int64_t before_round, std::uint64_t hash,
                              std::span<const float> params) = 0;

  // Answers anew what CoordinatorWelcome says of the run: for a worker that has fallen behind.
  virtual CoordinatorWelcome look() = 0;

  // As the coordinator said in the newest result of the calls above. Rates of the open round are of
  // this length: so all workers have the same, also where an operator changes it.
  virtual RunLength length() const { return {}; }

  virtual Traffic traffic() const = 0;  // bytes of messages, without those of TLS, HTTP/2 and TCP
};

}  // namespace pride
