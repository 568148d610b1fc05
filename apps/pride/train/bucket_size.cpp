// SPDX-License-Identifier: Apache-2.0
#include "train/bucket_size.h"

#include <algorithm>
#include <cmath>

#include "bench/network.h"
#include "plan/method_speed.h"
#include "plan/predict.h"
#include "plan/units.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "text/table.h"

namespace pride::app {
namespace {

// Coordinates. What a bucket costs by itself is more than its latencies: its threads, on all ranks,
// must each get a core several times while backward keeps them busy.
constexpr double kSmallest = 1 << 20;
constexpr double kCounted = 1e6;  // coordinates whose bytes are counted, for those of all

// Sent in a step by the rank that sends most.
double bytes_per_step(const TrainPlan& plan, double coords) {
  const double some = std::min(coords, kCounted);
  return bytes_of(plan.options.method, plan.world, some, static_cast<std::size_t>(some)) *
         (coords / some);
}

}  // namespace

int buckets_for(double bytes_s, double latency_s, double coords) {
  const double most = std::max(1.0, std::floor(coords / kSmallest));
  if (latency_s <= 0) return static_cast<int>(most);
  return static_cast<int>(std::clamp(std::round(std::sqrt(bytes_s / latency_s)), 1.0, most));
}

void choose_bucket_size(Communicator& comm, TrainPlan& plan) {
  const TrainOptions& o = plan.options;
  if (o.bucket_mb || o.bucket_coords || comm.size() == 1 || comm.transport() == "threads") return;
  const auto coords = static_cast<double>(plan.task->make_model()->n_parameters());
  const NetworkFacts network = measure_network(comm, kBriefly);
  const MethodInfo info = method_info(o.method, plan.world);
  const double latency_s =
      info.rounds * (network.latency_s + network.message_s * std::max(0, plan.world - 2));
  int n = buckets_for(bytes_per_step(plan, coords) / network.goodput, latency_s, coords);
  comm.broadcast(std::as_writable_bytes(std::span(&n, 1)), 0);
  plan.optimizer.bucket_coords = static_cast<std::size_t>(std::ceil(coords / n));
  plan.notes.push_back(concat(n, n == 1 ? " bucket of " : " buckets of ",
                              grouped(static_cast<double>(plan.optimizer.bucket_coords)),
                              " coordinates, for ", time_text(network.latency_s), " latency and ",
                              bandwidth_text(network.goodput),
                              " goodput; --bucket-mb sets another size"));
}

}  // namespace pride::app
