// The worker's side of a coordinator's run: ballot, record, replay, parameters, join.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optimizer/central_round.h"
#include "optimizer/run_values.h"
#include "optimizer/section.h"
#include "pride/coordinator.h"
#include "pride/replica.h"
#include "pride/run_worker.h"

namespace pride {

class Central {
 public:
  // All must outlive this object. For replay() alone the client may be null. Throws
  // InvalidArgument if a coordinator cannot serve the method.
  Central(const Layout& layout, const Sections& sections, std::span<const SectionStep> steps,
          const OptimizerOptions& options, std::shared_ptr<CoordinatorClient> client = nullptr,
          RunWorkerOptions run = {});

  std::int64_t period() const noexcept { return rounds_.period(); }
  int number() const noexcept { return voter_.number; }  // 0 before join()
  // Of one section's frames.
  std::size_t ballot_bytes(std::int64_t round, std::size_t section) const {
    return rounds_.bytes_by_section(round)[section];
  }
  Traffic traffic() const { return client_ ? client_->traffic() : Traffic{}; }

  // Joins the run. Before, x are the parameters before this round; afterwards, also if it throws, x
  // and the method's state are those before `round`: without an error the open one. Throws
  // InvalidArgument if the coordinator has another run, else CommError.
  void join(View x, std::int64_t& round);

  // Between encode and apply: votes, waits, and reads the record. `x` are the parameters, which it
  // does not change; the contexts of `steps` get the record's round. kReplay: the results do not
  // include this worker's frames. kNothing: they are for other parameters than this worker's.
  enum class Results { kApply, kReplay, kNothing };
  Results exchange(View x, std::span<SectionStep> steps, std::span<Flight> flights);

  // Ends a round. `voted`: exchange() was called; false: a gradient is not finite. Afterwards, also
  // if it throws, x are the parameters before `round`.
  void finish(View x, std::int64_t& round, bool voted, RoundReport& report);

  // Applies the record to x, the parameters before that round. Throws CommError, beginning with
  // `where`, unless it is this run's record of that round, with the hash of x.
  void replay(View x, std::int64_t round, std::span<const std::byte> record,
              const std::string& where);

 private:
  RunDescription description() const;
  std::string where(std::int64_t round) const;
  RoundRecord read(std::span<const std::byte> bytes, std::int64_t round,
                   const std::string& where) const;
  void take_results(const RoundRecord& record, StepContext& ctx, std::span<Flight> flights);
  void apply(View x, const RoundRecord& record);
  void begin(View x) const;
  void give(View x, std::int64_t round);
  std::int64_t take(View x);
  bool replays_are_fewer_bytes(std::int64_t from) const;
  void catch_up(View x, std::int64_t& round, bool take_parameters, RoundReport& report);

  const Layout& layout_;
  const Sections& sections_;
  const std::span<const SectionStep> steps_;
  const RunValues values_;
  const OptimizerOptions& options_;
  const std::shared_ptr<CoordinatorClient> client_;
  const RunWorkerOptions run_;
  CentralRound rounds_;
  Voter voter_;
  CoordinatorWelcome welcome_;

  // of the current round
  CoordinatorVote answer_;
  RoundRecord record_;
  std::vector<int> weights_;
  bool other_parameters_ = false;  // the record's hash is not that of x
  std::vector<Flight> replayed_;   // by bucket
};

}  // namespace pride
