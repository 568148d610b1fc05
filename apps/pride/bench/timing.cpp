// Statistics of times.
// SPDX-License-Identifier: Apache-2.0
#include "bench/timing.h"

#include <algorithm>
#include <cmath>

#include "pride/error.h"

namespace pride::app {

Times times_of(std::vector<double> seconds) {
  PRIDE_CHECK(!seconds.empty(), "times_of: nothing was measured");
  std::ranges::sort(seconds);
  const std::size_t n = seconds.size();
  const double middle = n % 2 == 1 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
  const auto rank = static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(n)));
  return {static_cast<int>(n), seconds.front(), middle, seconds[rank - 1]};
}

double largest_of(Communicator& comm, double mine) {
  return std::ranges::max(gathered(comm, mine));
}

int count_ranks(Communicator& comm, bool is_true) {
  return static_cast<int>(std::ranges::count(gathered(comm, static_cast<char>(is_true)), 1));
}

}  // namespace pride::app
