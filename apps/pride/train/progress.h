// The progress line: step, loss, learning rate, speed, bytes on the wire, time left.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/step_stats.h"

namespace pride::app {

struct ProgressOptions {
  bool quiet = false;
  bool terminal = false;  // rewrite one line, instead of a line each log_every steps
  std::int64_t log_every = 10;
  std::int64_t total_steps = 0;
  std::int64_t samples_per_step = 0;
};

// Writes to standard error. Rates are those since the line before.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options);

  void on_step(const WorldStep& step);
  // A line of its own that stays.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  bool due(std::int64_t step, Clock::time_point now) const;

  ProgressOptions options_;
  Clock::time_point start_, last_time_;
  std::int64_t first_step_ = -1, steps_since_ = 0;
  std::uint64_t bytes_since_ = 0;  // sent by all ranks
  double loss_since_ = 0;
  bool line_open_ = false;
};

// "1:02:03" or "2:03".
std::string clock_text(double seconds);

// "  loss 2.3026  accuracy 0.1000": each number of `metrics`, for people.
std::string metric_text(const nlohmann::ordered_json& metrics);

// 1234567 -> "1.2 MB"; powers of 1000.
std::string bytes_text(double bytes);

}  // namespace pride::app
