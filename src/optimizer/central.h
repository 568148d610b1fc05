// The worker's half of a run by a coordinator: ballot, record, replay, parameters, join.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "methods/method.h"
#include "optimizer/central_round.h"
#include "optimizer/pipeline.h"
#include "pride/coordinator.h"
#include "pride/layout.h"
#include "pride/optimizer.h"

namespace pride {

class Central {
 public:
  // All must outlive this object. options.coordinator may be null: for replay() alone. Throws
  // InvalidArgument if a coordinator cannot serve the method.
  Central(const Layout& layout, Method& method, std::span<const Bucket> buckets,
          const OptimizerOptions& options);

  std::int64_t period() const noexcept { return rounds_.period(); }
  int number() const noexcept { return voter_.number; }  // 0 before join()
  std::size_t ballot_bytes(std::int64_t round) const { return rounds_.ballot_bytes(round); }
  Traffic traffic() const { return client_ ? client_->traffic() : Traffic{}; }

  // Joins the run, with parameters from before round `done`; afterwards x, and what the method has
  // of it, are those before the round that is returned, which workers vote on now. Throws
  // InvalidArgument if the run is another one, else CommError.
  std::int64_t join(View x, std::int64_t done);

  // Between encode and apply: votes, waits, and takes the record. `x` are the parameters.
  Pipeline::Results exchange(View x, StepContext& ctx, std::span<Flight> flights);

  // After a step whose exchange() was, or (`x` not voted on: not finite) was not. Afterwards x are
  // the parameters before the round that is returned.
  std::int64_t finish(View x, std::int64_t round, bool voted, RoundReport& report);

  // The record's results on x, before them those of all rounds until then. Throws CommError,
  // beginning with `where`, unless it is the record of that round of this run, and x has its hash.
  void replay(View x, std::int64_t round, std::span<const std::byte> record,
              const std::string& where);

 private:
  RunDescription description() const;
  std::string where(std::int64_t round) const;
  RoundRecord read(std::span<const std::byte> bytes, std::int64_t round,
                   const std::string& where) const;
  void take_results(const RoundRecord& record, StepContext& ctx, std::span<Flight> flights);
  void apply(View x, const RoundRecord& record);
  std::uint64_t hash_of(View x) const;
  void give(View x, std::int64_t round);
  std::int64_t take(View x);
  bool replays_are_fewer_bytes(std::int64_t from) const;
  std::int64_t catch_up(View x, std::int64_t round, bool take_parameters, RoundReport& report);

  const Layout& layout_;
  Method& method_;
  const OptimizerOptions& options_;
  std::shared_ptr<CoordinatorClient> client_;
  CentralRound rounds_;
  Voter voter_;
  CoordinatorWelcome welcome_;

  // of the round at hand
  CoordinatorVote answer_;
  RoundRecord record_;
  std::vector<int> weights_;
  bool other_parameters_ = false;  // than those of the record
  std::vector<Flight> replayed_;   // by bucket
};

}  // namespace pride
