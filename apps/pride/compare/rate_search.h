// The grid of learning rates 1, 3, 10, 30, ... and the search for the best rate on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pride::app {

// Point k of the grid: 10^(k/2) for even k, 3 * 10^((k-1)/2) for odd k, as a user would type it.
double grid_rate(int k);

// The grid point next to `rate` in the logarithm. REQUIRES: rate > 0 and finite.
int nearest_grid_point(double rate);

struct Trial {
  int point = 0;
  double rate = 0;
  double loss = 0;  // infinite: the run failed or diverged
};

// Climbs from grid point `start`: tries the neighbours of the best point so far, lower one first,
// until both have been tried and neither is better. An equal loss is not better, but of failures
// the lower rate is, so that a search that begins where everything diverges goes down. Ends after
// five failures without a success, and after 20 trials in any case. Returns the trials in the order
// in which they were made.
std::vector<Trial> search_rate(int start, const std::function<double(double rate)>& loss_at);

// The trial with the lowest loss, of equal ones the first; null if all failed.
const Trial* best_trial(const std::vector<Trial>& trials);

// "3e-4", "0.1": the shortest text that reads back as the same number.
std::string rate_text(double rate);

}  // namespace pride::app
