// What a coordinator needs of a run's method: Serving computes the results of ballots; Shadow
// applies them as a worker does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/coordinator.h"
#include "pride/flat_buffer.h"
#include "pride/round_record.h"

namespace pride {

// The functions may be called by several threads.
class Serving {
 public:
  virtual ~Serving() = default;

  virtual std::int64_t step_of(std::int64_t round) const = 0;
  virtual std::size_t ballot_bytes(std::int64_t round) const = 0;
  // Parameters, then the workers' shared state, with padding.
  virtual std::size_t parameter_floats() const = 0;
  virtual std::uint64_t parameters_hash(std::span<const float> params) const = 0;
  virtual std::uint64_t coordinates() const = 0;  // without padding
  virtual int groups() const = 0;
  virtual std::uint64_t digest_of(std::span<const StepScalars> scalars) const = 0;
  // Largest sum of weights; 0: the method has none.
  virtual std::int64_t most_votes() const = 0;

  // Throws CommError, naming the worker and the frame. `voter` has its registered weight, which its
  // frames carry, even if the coordinator gives it another weight.
  virtual void check_ballot(std::int64_t round, std::uint64_t scalars_digest, Voter voter,
                            std::span<const std::byte> ballot) const = 0;
  virtual std::vector<std::byte> serve(
      std::int64_t round, std::uint64_t scalars_digest, std::span<const Voter> voters,
      std::span<const std::span<const std::byte>> ballots) const = 0;

  virtual bool has_signs() const = 0;  // in ballots
  // At most `most` words of signs. Their positions depend only on `key`, and are the same for all
  // ballots of a round. Bits without a coordinate are 0 in `mask`. Empty: ballots have no signs.
  struct Signs {
    std::vector<std::uint64_t> words, mask;
  };
  virtual Signs sample(std::int64_t round, std::span<const std::byte> ballot, std::uint64_t key,
                       std::size_t most) const = 0;
};

// The options of the optimizer of each worker that its records do not contain.
OptimizerOptions optimizer_options(const RunDescription& run);

// The Serving of a run by its method. Throws InvalidArgument if a coordinator cannot serve the run,
// with the reason.
std::unique_ptr<Serving> make_serving(const RunDescription& run);

// The workers' shared parameters and state, updated by applying records. A coordinator with a
// shadow computes the hash before each round itself, and needs no worker's parameters.
class Shadow {
 public:
  // Needs the memory of a worker's optimizer: parameters and the method's state.
  explicit Shadow(const RunDescription& run);
  ~Shadow();

  // Parameters before a round, as workers send them. REQUIRES: Serving::parameter_floats().
  void take(std::int64_t before_round, std::span<const float> params);
  // Throws CommError, and has changed nothing, unless the record is of round() and has hash().
  // REQUIRES: take() was called.
  void apply(std::span<const std::byte> record, const std::string& where);

  std::int64_t round() const;  // the parameters are those before this round; -1: none yet
  FlatBuffer params() const;
  std::uint64_t hash() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
