// SPDX-License-Identifier: Apache-2.0
#include "coord/grace.h"

#include <algorithm>
#include <cmath>

namespace pride::coord {

Seconds GraceWindow::window() const {
  if (options_.grace) return *options_.grace;
  if (recent_.empty()) return options_.most_grace;
  std::vector<double> after;
  for (const Arrivals& round : recent_) {
    after.insert(after.end(), round.after.begin(), round.after.end());
  }
  if (after.empty()) return options_.least_grace;
  const double rank = std::ceil(kQuantile * static_cast<double>(after.size()));
  const auto at = after.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::ranges::nth_element(after, at);
  return std::clamp(Seconds(kFactor * *at), options_.least_grace, options_.most_grace);
}

void GraceWindow::quorum(std::int64_t round, Time at) {
  recent_.push_back({round, at, {}});
  if (recent_.size() > kRounds) recent_.pop_front();
}

std::optional<Seconds> GraceWindow::arrived(std::int64_t round, Time at) {
  const auto found = std::ranges::find(recent_, round, &Arrivals::round);
  if (found == recent_.end()) return {};
  const Seconds after = std::max(Seconds(0), Seconds(at - found->quorum));
  found->after.push_back(after.count());
  return after;
}

}  // namespace pride::coord
