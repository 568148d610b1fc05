// Cost of a step, and the parts of a bucket in flight.
// SPDX-License-Identifier: Apache-2.0
#include "methods/method.h"

#include <algorithm>

namespace pride {

Wire* Flight::find(int id) {
  const auto part = std::ranges::find(parts, id, &Part::id);
  return part == parts.end() ? nullptr : &wires[static_cast<std::size_t>(part - parts.begin())];
}

const Wire* Flight::find(int id) const { return const_cast<Flight*>(this)->find(id); }

const Part& Flight::part(int id) const { return *std::ranges::find(parts, id, &Part::id); }

std::size_t Flight::capacity_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Wire& wire : wires) bytes += wire.capacity_bytes();
  return bytes;
}

std::vector<Cost> step_costs(const Method& method, std::span<const Bucket> buckets,
                             const SharedContext& shared, const Nodes& nodes) {
  std::vector<Cost> costs(static_cast<std::size_t>(shared.voters));
  const Protocol protocol = method.protocol(shared);
  if (protocol.preliminary) add_cost(*protocol.preliminary, nodes, costs);
  std::size_t n_coords = 0;
  for (const Bucket& bucket : buckets) {
    n_coords += bucket.size();
    for (const Part& part : method.parts(bucket, shared)) add_cost(part, nodes, costs);
  }
  for (Cost& cost : costs) {
    if (protocol.slack) cost.bytes_up += protocol.slack(n_coords, buckets.size());
    cost.exact = cost.exact && !protocol.slack;
  }
  return costs;
}

std::vector<std::int64_t> exchanging_steps(const Method& method, std::int64_t step) {
  std::vector<std::int64_t> steps = method.facts().exchanging_steps;
  const std::int64_t begin = step - step % method.facts().period;
  for (std::int64_t& s : steps) s += begin;
  return steps;
}

std::vector<Part> parts_in_period(const Method& method, const Bucket& bucket,
                                  SharedContext shared) {
  for (const std::int64_t step : exchanging_steps(method, shared.step)) {
    shared.step = step;
    std::vector<Part> parts = method.parts(bucket, shared);
    if (!parts.empty()) return parts;
  }
  return {};
}

std::vector<Cost> mean_costs(const Method& method, std::span<const Bucket> buckets,
                             const SharedContext& shared, const Nodes& nodes) {
  std::vector<Cost> sums(static_cast<std::size_t>(shared.voters));
  SharedContext at = shared;
  for (const std::int64_t step : exchanging_steps(method, shared.step)) {
    at.step = step;
    const std::vector<Cost> costs = step_costs(method, buckets, at, nodes);
    for (std::size_t r = 0; r < sums.size(); ++r) sums[r] += costs[r];
  }
  const auto steps = static_cast<std::uint64_t>(method.facts().period);
  const auto mean = [&](std::uint64_t bytes) { return (bytes + steps - 1) / steps; };
  for (Cost& cost : sums) {
    cost.bytes_up = mean(cost.bytes_up);
    cost.bytes_down = mean(cost.bytes_down);
    cost.bytes_local = mean(cost.bytes_local);
  }
  return sums;
}

}  // namespace pride
