// What each rank says of a step, and what all of them together say.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pride/diagnostics.h"

namespace pride::app {

// Seconds of one step by stage. Data: waiting for the batch, or making it. Backward: forward,
// backward, clipping.
struct StageTimes {
  double data = 0, backward = 0, encode = 0, exchange = 0, apply = 0;

  void operator+=(const StageTimes& other) {
    data += other.data;
    backward += other.backward;
    encode += other.encode;
    exchange += other.exchange;
    apply += other.apply;
  }
};

// Travels between ranks as bytes.
struct RankStep {
  double loss = 0;  // mean over this rank's samples
  StageTimes seconds;
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint32_t interrupted = 0;  // this rank was asked to stop
  std::uint32_t skipped = 0;      // the step was dropped for a non-finite gradient
};

struct WorldStep {
  std::int64_t step = 0;  // steps done after it
  double lr = 0;
  std::optional<double> grad_norm;             // of the mean gradient, if it is clipped
  std::vector<TensorDiagnostics> diagnostics;  // by tensor, in the steps that have them
  std::string note;                            // what the method decided
  std::vector<RankStep> ranks;

  double mean_loss() const {
    double sum = 0;
    for (const RankStep& r : ranks) sum += r.loss;
    return sum / static_cast<double>(ranks.size());
  }
  bool interrupted() const {
    return std::ranges::any_of(ranks, [](const RankStep& r) { return r.interrupted != 0; });
  }
  std::uint64_t max_bytes_sent() const {
    std::uint64_t most = 0;
    for (const RankStep& r : ranks) most = std::max(most, r.bytes_sent);
    return most;
  }
  std::uint64_t max_bytes_received() const {
    std::uint64_t most = 0;
    for (const RankStep& r : ranks) most = std::max(most, r.bytes_received);
    return most;
  }
  // of the slowest rank, stage by stage
  StageTimes max_seconds() const {
    StageTimes most;
    for (const RankStep& r : ranks) {
      most.data = std::max(most.data, r.seconds.data);
      most.backward = std::max(most.backward, r.seconds.backward);
      most.encode = std::max(most.encode, r.seconds.encode);
      most.exchange = std::max(most.exchange, r.seconds.exchange);
      most.apply = std::max(most.apply, r.seconds.apply);
    }
    return most;
  }
};

}  // namespace pride::app
