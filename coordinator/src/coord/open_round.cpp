// SPDX-License-Identifier: Apache-2.0
#include "coord/open_round.h"

#include <algorithm>
#include <cmath>

namespace pride::coord {

const HeldBallot* OpenRound::of(int number) const {
  const auto found = places_.find(number);
  return found == places_.end() ? nullptr : &ballots_[found->second];
}

void OpenRound::add(HeldBallot ballot) {
  places_[ballot.number] = ballots_.size();
  ballots_.push_back(std::move(ballot));
}

void OpenRound::remove(int number) {
  std::erase_if(ballots_, [&](const HeldBallot& b) { return b.number == number; });
  places_.clear();
  for (std::size_t i = 0; i < ballots_.size(); ++i) places_[ballots_[i].number] = i;
}

std::vector<const HeldBallot*> OpenRound::group(std::optional<std::uint64_t> known) const {
  std::vector<std::vector<const HeldBallot*>> groups;
  for (const HeldBallot& ballot : ballots_) {
    if (known && ballot.params_hash != *known) continue;
    const auto fits = [&](const auto& group) { return group[0]->agrees_with(ballot); };
    const auto found = std::ranges::find_if(groups, fits);
    if (found == groups.end()) {
      groups.push_back({&ballot});
    } else {
      found->push_back(&ballot);
    }
  }
  if (groups.empty()) return {};
  return *std::ranges::max_element(groups, {}, [](const auto& group) { return group.size(); });
}

int quorum_of(const QuorumOptions& options, int waited_for) {
  const int share = static_cast<int>(std::ceil(options.share * waited_for - 1e-9));
  return std::max(options.least_voters(), options.count.value_or(share));
}

Close may_close(const QuorumOptions& options, const Votes& votes, std::optional<Time> quorum_at,
                Seconds window, Time now) {
  if (votes.in_group < options.least_voters()) return Close::kNot;
  if (votes.waited_and_in == votes.waited_for) return Close::kAll;
  if (quorum_at && Seconds(now - *quorum_at) >= window) return Close::kQuorum;
  return Close::kNot;
}

}  // namespace pride::coord
