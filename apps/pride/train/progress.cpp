// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace pride::app {
namespace {

constexpr std::chrono::milliseconds kRedraw{200};

}  // namespace

std::string clock_text(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::max(seconds, 0.0)));
  std::array<char, 32> text;
  if (s >= 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", s / 60, s % 60);
  }
  return text.data();
}

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text.data();
}

std::string metric_text(const nlohmann::ordered_json& metrics) {
  std::string text;
  for (const auto& [key, value] : metrics.items()) {
    std::array<char, 32> number;
    std::snprintf(number.data(), number.size(), value.is_number_float() ? "%.4f" : "%.0f",
                  value.get<double>());
    text += "  " + key + " " + number.data();
  }
  return text;
}

Progress::Progress(const ProgressOptions& options)
    : options_(options), start_(Clock::now()), last_time_(start_) {}

bool Progress::due(std::int64_t step, Clock::time_point now) const {
  if (step == options_.total_steps) return true;
  return options_.terminal ? now - last_time_ >= kRedraw : step % options_.log_every == 0;
}

void Progress::on_step(const WorldStep& step) {
  if (options_.quiet) return;
  if (first_step_ < 0) first_step_ = step.step - 1;
  ++steps_since_;
  loss_since_ += step.mean_loss();
  for (const RankStep& rank : step.ranks) bytes_since_ += rank.bytes_sent;
  const Clock::time_point now = Clock::now();
  if (!due(step.step, now)) return;

  const double window = std::max(std::chrono::duration<double>(now - last_time_).count(), 1e-9);
  const double run = std::chrono::duration<double>(now - start_).count();
  const auto done = static_cast<double>(step.step - first_step_);
  const double left = run / done * static_cast<double>(options_.total_steps - step.step);
  const auto steps = static_cast<double>(steps_since_);
  std::fprintf(stderr, "%sstep %lld/%lld  loss %.4f  lr %.2e  %.0f samples/s  %s/s  %s left%s",
               options_.terminal ? "\r\033[K" : "", static_cast<long long>(step.step),
               static_cast<long long>(options_.total_steps), loss_since_ / steps, step.lr,
               steps * static_cast<double>(options_.samples_per_step) / window,
               bytes_text(static_cast<double>(bytes_since_) / window).c_str(),
               clock_text(left).c_str(), options_.terminal ? "" : "\n");
  line_open_ = options_.terminal;
  last_time_ = now;
  steps_since_ = 0;
  bytes_since_ = 0;
  loss_since_ = 0;
}

void Progress::note(const std::string& text) {
  if (options_.quiet) return;
  std::fprintf(stderr, "%s%s\n", line_open_ ? "\n" : "", text.c_str());
  line_open_ = false;
}

}  // namespace pride::app
