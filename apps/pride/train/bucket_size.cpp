// SPDX-License-Identifier: Apache-2.0
#include "train/bucket_size.h"

#include <algorithm>
#include <cmath>

#include "bench/network.h"
#include "plan/units.h"
#include "pride/error.h"
#include "pride/plan.h"
#include "pride/registry.h"
#include "text/table.h"
#include "train_names.h"

namespace pride::app {
namespace {

// Coordinates. What a bucket costs by itself is more than its latencies: its threads, on all ranks,
// must each get a core several times while backward keeps them busy.
constexpr double kSmallest = 1 << 20;
constexpr double kCounted = 1e6;  // coordinates whose bytes are counted, for those of all

PlanMethod method_of(const TrainPlan& plan) {
  return {plan.options.method, plan.optimizer.options};
}

// Sent in a step by the rank that sends most.
double bytes_per_step(const PlanMethod& method, int world, double coords) {
  const double some = std::min(coords, kCounted);
  return bytes_of(method, world, some, static_cast<std::size_t>(some)) * (coords / some);
}

// What was measured, where the method chooses the route of a bucket by it. True if it does.
bool set_round_bytes(const NetworkModel& network, TrainPlan& plan) {
  const std::size_t given = plan.optimizer.options.size();
  plan.optimizer.options = on_network(method_of(plan), network, plan.world).options;
  return plan.optimizer.options.size() > given;
}

int best_number(const NetworkModel& network, const TrainPlan& plan, double coords) {
  const PlanMethod method = method_of(plan);
  const double bytes_s = bytes_per_step(method, plan.world, coords) / network.bytes_per_s;
  const double round_s = network.latency_s + network.message_s * std::max(0, plan.world - 2);
  const auto number = [&](int rounds) { return buckets_for(bytes_s, rounds * round_s, coords); };
  const auto rounds_of = [&](double n) {
    return route_of(method, plan.world, static_cast<std::size_t>(coords / n)).rounds;
  };
  const int n = number(rounds_of(1));
  return number(rounds_of(n));  // buckets of that size may take another route
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
  const auto coords = static_cast<double>(plan.task->model().make()->n_parameters());
  const NetworkFacts facts = measure_network(comm, kBriefly);
  NetworkModel network{facts.latency_s, facts.message_s, facts.goodput, facts.cpu_s_per_byte};
  comm.broadcast(std::as_writable_bytes(std::span(&network, 1)), 0);
  const bool chooses = set_round_bytes(network, plan);
  const int n = best_number(network, plan, coords);
  plan.optimizer.bucket_coords = static_cast<std::size_t>(std::ceil(coords / n));
  plan.notes.push_back(concat(n, n == 1 ? " bucket of " : " buckets of ",
                              grouped(static_cast<double>(plan.optimizer.bucket_coords)),
                              " coordinates, for ", time_text(network.latency_s), " latency and ",
                              bandwidth_text(network.bytes_per_s),
                              " goodput; --bucket-mb sets another size"));
  if (!chooses) return;
  plan.notes.push_back(
      concat("route by round_bytes=", plan.optimizer.options.at("round_bytes"),
             ", latency times goodput; --method-opt route=sharded|one-shot sets it"));
}

}  // namespace pride::app
