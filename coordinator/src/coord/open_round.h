// OpenRound: the ballots of the open round, and whether it can close.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coord/options.h"
#include "coord/uploads.h"

namespace pride::coord {

// A checked ballot.
struct HeldBallot {
  int number = 0;  // of the worker
  std::uint64_t params_hash = 0;
  std::string scalars;  // encoded
  std::uint64_t scalars_digest = 0;
  std::shared_ptr<const Upload> frames;
  std::optional<double> loss;
  Time arrived{};

  bool agrees_with(const HeldBallot& other) const {
    return params_hash == other.params_hash && scalars == other.scalars;
  }
};

class OpenRound {
 public:
  explicit OpenRound(std::int64_t round) : round_(round) {}

  std::int64_t round() const noexcept { return round_; }
  const std::vector<HeldBallot>& ballots() const noexcept { return ballots_; }  // by arrival
  const HeldBallot* of(int number) const;
  void add(HeldBallot ballot);
  void remove(int number);

  // The largest group of ballots with equal parameters and scalars; of equally large groups the
  // first to begin. If `known` is set, only ballots with this hash count.
  std::vector<const HeldBallot*> group(std::optional<std::uint64_t> known) const;

 private:
  std::int64_t round_;
  std::vector<HeldBallot> ballots_;
  std::unordered_map<int, std::size_t> places_;  // by number
};

// Voters of a quorum. `waited_for`: the number of workers waited for, voters included.
int quorum_of(const QuorumOptions& options, int waited_for);

// A snapshot of a round.
struct Votes {
  int in_group = 0;       // ballots of the group
  int waited_for = 0;     // workers waited for
  int waited_and_in = 0;  // workers waited for that have a ballot in any group
};
enum class Close { kNot, kAll, kQuorum };
// `quorum_at`: when the quorum was reached; `window`: the grace window after it.
Close may_close(const QuorumOptions& options, const Votes& votes, std::optional<Time> quorum_at,
                Seconds window, Time now);

}  // namespace pride::coord
