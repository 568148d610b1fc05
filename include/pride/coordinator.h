// CoordinatorClient: a worker's connection to a coordinator, which replaces the other ranks.
// SPDX-License-Identifier: Apache-2.0
//
// The papers' central server, for workers that join and leave. A round is one exchange: a step, or
// the h-th step of a method with local steps. Each worker sends a ballot: the frames for the
// servers of all shards. When the round closes, the coordinator computes the result of the ballots
// that have arrived. It keeps the record: result frames, voters, scalars of the step. Every worker
// applies every record, in order. So all have the same parameters, whether they voted or not.
// coordinator/docs/design.md
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
#include "pride/replica.h"

namespace pride {

// Settings that must be equal on all workers of a run. The first worker's are the run's.
struct RunDescription {
  std::string method;
  std::map<std::string, std::string> options;  // all options of the method, with defaults
  std::vector<TensorSpec> tensors;
  // Each group's values at construction, with the method's defaults. Values that the method lacks
  // are unset, and so is lr, which changes during a run.
  std::vector<ParamGroup> groups = {};
  std::uint64_t bucket_coords = 0;  // buckets of one rank
  std::uint64_t seed = 0;           // seeds zeros, ties and stochastic rounding
  // A text of the caller's program that must be equal. If it has lines "name=value", a refusal
  // names the first that differs.
  std::string settings;
};

struct Ballot {
  std::int64_t round = 0;
  std::uint64_t params_hash = 0;      // of the common state before the round: the parameters, and
                                      // for methods on the mean gradient their shared state
  std::vector<std::byte> scalars;     // StepScalars of each group: equal for all voters of a round
  std::span<const std::byte> frames;  // bucket by bucket, part by part
  std::optional<double> loss;         // for the coordinator's status page
};

struct CoordinatorWelcome {
  int number = 0;                 // of this worker: rank in its frames, key of its random signs
  std::int64_t open_round = 0;    // the round that workers vote on now
  std::int64_t first_record = 0;  // the oldest record available; open_round: none
  std::optional<std::int64_t> parameters_round;  // the coordinator's parameters are those before
                                                 // this round; none: this worker must send them
  std::uint64_t parameters_hash = 0;
};

struct CoordinatorVote {
  std::vector<std::byte> record;  // of the ballot's round, encoded (docs/wire_format.md)
  bool counted = false;           // the ballot is among its voters
  std::string why_not;            // "late", "other parameters than most", ...
  std::int64_t open_round = 0;    // at the reply: above round + 1 if this worker is behind
  bool wants_parameters = false;  // the parameters after this round are requested from this worker
};

// Length of the run, from the open round on. 0: as in this worker's settings.
struct RunLength {
  std::int64_t steps = 0;      // steps of the schedule of learning rates
  std::int64_t last_step = 0;  // the run ends after this step: no later round closes
};

// Calls block, with the implementation's time-outs and retries. They throw CommError, naming the
// coordinator and the round, if it cannot be reached in that time or refuses this worker for good.
// Only one thread may call, except for interrupt().
class CoordinatorClient {
 public:
  virtual ~CoordinatorClient() = default;

  // The first call, also after a failure that the client could not repair. Throws InvalidArgument,
  // naming the difference, if the coordinator has another run.
  virtual CoordinatorWelcome join(const RunDescription& run, int vote_weight) = 0;

  // Sends the ballot and waits for the round's record.
  virtual CoordinatorVote vote(const Ballot& ballot) = 0;

  // Waits for a round's record without sending a ballot.
  virtual CoordinatorVote wait(std::int64_t round) = 0;

  // The record of a closed round. REQUIRES: first_record <= round < open_round.
  virtual std::vector<std::byte> record(std::int64_t round) = 0;

  // Downloads the parameters from before round `parameters_round`, with padding, followed by each
  // shared buffer of the method's state. put_parameters() uploads the same.
  virtual void get_parameters(std::int64_t parameters_round, std::span<float> params) = 0;
  virtual void put_parameters(std::int64_t before_round, std::uint64_t hash,
                              std::span<const float> params) = 0;

  // Returns the run's present CoordinatorWelcome, for a worker that has fallen behind.
  virtual CoordinatorWelcome look() = 0;

  // The run's length according to the newest result of the calls above. It determines the rates of
  // the open round, so workers have equal rates even after an operator changes it.
  virtual RunLength length() const { return {}; }

  // Ends the call in progress, within a second: it and later calls throw CommError. Any thread may
  // call it, and repeat it. By default calls do not wait, and it does nothing.
  virtual void interrupt() {}

  virtual Traffic traffic() const = 0;  // bytes of messages, without TLS, HTTP/2 and TCP
};

}  // namespace pride
