// A coordinator's round: the ballots of its workers, and the record that all of them apply.
// Byte layout: docs/wire_format.md. Used by workers (optimizer) and by the coordinator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bucket.h"
#include "base/step.h"
#include "optimizer/section.h"
#include "pride/round_record.h"

namespace pride {

// The worker's and the server's half of a run's rounds, without parameters and gradients. REQUIRES:
// steps for a world of one rank; both arguments outlive this object. Several threads may call.
class CentralRound {
 public:
  // Throws InvalidArgument if a coordinator cannot serve the method, with the reason: shared scales
  // before a step, server state, shared state that records do not determine, frames whose length
  // depends on data.
  CentralRound(const Sections& sections, std::span<const SectionStep> steps);

  std::int64_t period() const noexcept { return period_; }
  std::int64_t step_of(std::int64_t round) const noexcept { return round * period_ + period_ - 1; }
  std::size_t ballot_bytes(std::int64_t round) const;
  std::vector<std::size_t> bytes_by_section(std::int64_t round) const;  // of a ballot
  std::size_t record_bytes(std::int64_t round, int groups, std::span<const Voter> voters) const;

  // The server's context of the step, with these voters. `weights` must be weights_of(voters), and
  // must outlive the result.
  SharedContext shared_context(std::int64_t round, std::uint64_t seed, std::uint64_t scalars_digest,
                               std::span<const Voter> voters, std::span<const int> weights) const;

  // Weights over their common divisor; empty: all are equal. Throws InvalidArgument if the method
  // has no weights, or if their sum is above its limit.
  std::vector<int> weights_of(std::span<const Voter> voters) const;

  // The frames that encode() left in the flights of all buckets, sealed.
  std::vector<std::byte> ballot(const SharedContext& shared, Voter voter,
                                std::span<const Flight> flights) const;

  // Throws CommError, naming the worker and the frame, unless this is a ballot of that round.
  // REQUIRES: the ballot begins at a multiple of 8.
  void check_ballot(std::int64_t round, std::uint64_t seed, std::uint64_t scalars_digest,
                    Voter voter, std::span<const std::byte> ballot) const;

  // Returns the frames of the record. The weights in `voters` count; headers of ballots may have
  // others. REQUIRES: the ballots were checked and belong to `voters`, whose numbers ascend.
  std::vector<std::byte> serve(std::int64_t round, std::uint64_t seed, std::uint64_t scalars_digest,
                               std::span<const Voter> voters,
                               std::span<const std::span<const std::byte>> ballots) const;

  // Throws CommError, beginning with `where`, unless the record's step and frames are those of its
  // round, voters and scalars in this run.
  void check_record(const RoundRecord& record, std::uint64_t seed, const std::string& where) const;

  // Visits the frames of a round in their order: by Bucket::index. `shard`: the only one of the
  // part.
  using VisitPart =
      std::function<void(std::size_t bucket, std::size_t part, const Part& p, const Shard& shard)>;
  void for_parts(const SharedContext& shared, const VisitPart& visit) const;

 private:
  void check(const SectionStep& step) const;

  const Sections& sections_;
  const std::span<const SectionStep> steps_;
  const std::int64_t period_;
};

}  // namespace pride
