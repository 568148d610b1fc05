// SPDX-License-Identifier: Apache-2.0
#include "compare/rate_search.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::size_t kMostFailures = 5;
constexpr std::size_t kMostTrials = 20;  // ten powers of ten, far beyond any sensible start

const Trial* find(const std::vector<Trial>& trials, int point) {
  const auto at = std::find_if(trials.begin(), trials.end(),
                               [point](const Trial& trial) { return trial.point == point; });
  return at == trials.end() ? nullptr : &*at;
}

bool better(const Trial& a, const Trial& b) {
  // where all fail, lower rates are the way out; on a plateau they would lead down for ever
  const bool both_failed = a.loss == INFINITY && b.loss == INFINITY;
  return both_failed ? a.point < b.point : a.loss < b.loss;
}

}  // namespace

double grid_rate(int k) {
  const int half = ((k % 2) + 2) % 2;  // 0 or 1, of negative k too
  // through text: 3 * 1e-4 is not the number that "3e-4" is
  return std::strtod(concat(half == 1 ? "3e" : "1e", (k - half) / 2).c_str(), nullptr);
}

int nearest_grid_point(double rate) {
  PRIDE_CHECK(rate > 0 && std::isfinite(rate), "learning rate ", rate,
              ": the search needs a finite start above 0");
  const auto distance = [rate](int k) { return std::abs(std::log(grid_rate(k) / rate)); };
  const int near = static_cast<int>(std::floor(2 * std::log10(rate)));
  int best = near - 1;
  for (int k = near; k <= near + 2; ++k) {
    if (distance(k) < distance(best)) best = k;
  }
  return best;
}

std::vector<Trial> search_rate(int start, const std::function<double(double rate)>& loss_at) {
  std::vector<Trial> trials;
  const auto visit = [&](int point) {
    const double rate = grid_rate(point), loss = loss_at(rate);
    trials.push_back({point, rate, std::isfinite(loss) ? loss : INFINITY});
  };
  visit(start);
  while (trials.size() < kMostTrials) {
    const Trial best = *std::min_element(trials.begin(), trials.end(), better);
    if (best.loss == INFINITY && trials.size() >= kMostFailures) return trials;
    if (find(trials, best.point - 1) == nullptr) {
      visit(best.point - 1);
    } else if (find(trials, best.point + 1) == nullptr) {
      visit(best.point + 1);
    } else {
      break;
    }
  }
  return trials;
}

const Trial* best_trial(const std::vector<Trial>& trials) {
  const auto best = std::min_element(trials.begin(), trials.end(), better);
  return best == trials.end() || best->loss == INFINITY ? nullptr : &*best;
}

std::string rate_text(double rate) {
  std::array<char, 64> text;
  const bool plain = rate == 0 || (rate >= 0.01 && rate < 1000);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), rate, format).ptr;
  std::string written(text.data(), end);
  // 3e-04 -> 3e-4
  const std::size_t e = written.find('e');
  if (e == std::string::npos) return written;
  const std::size_t digits = written.find_first_not_of("+-0", e + 1);
  const std::string sign = written[e + 1] == '-' ? "-" : "";
  return written.substr(0, e + 1) + sign +
         (digits == std::string::npos ? "0" : written.substr(digits));
}

}  // namespace pride::app
