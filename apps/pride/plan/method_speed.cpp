// One rank's step without peers, timed phase by phase.
// SPDX-License-Identifier: Apache-2.0
#include "plan/method_speed.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/timing.h"
#include "method_options.h"
#include "methods/registry.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#include "pride/registry.h"

namespace pride::app {
namespace {

constexpr double kMostMeasured = 4 << 20;                // coordinates
constexpr double kMostCounted = 1e7;                     // the same, of which bytes are counted
constexpr std::int64_t kSteady = std::int64_t{1} << 40;  // a step after every method's beginning
constexpr int kRounds = 7;
constexpr const char* kRoundBytes = "round_bytes";

Layout layout_of(double d) { return Layout({{"w", {static_cast<std::int64_t>(d)}}}); }

}  // namespace

double bytes_of(const std::string& method, int world, double d, std::size_t bucket_coords) {
  const MethodChoice choice = parse_method(method);
  const auto options = checked_options(choice);
  const auto sent = [&](double coords, double bucket) {
    const Cost cost = largest_cost(choice.name, layout_of(coords),
                                   {.options = options,
                                    .world = world,
                                    .step = kSteady,
                                    .bucket_coords = static_cast<std::size_t>(bucket)});
    return static_cast<double>(cost.bytes());
  };
  const double size = std::min(static_cast<double>(bucket_coords), d);
  const double buckets = std::ceil(d / size);
  if (size <= kMostCounted) {
    const double some = std::min(buckets, std::floor(kMostCounted / size));
    return sent(std::min(some * size, d), size) * (buckets / some);
  }
  // one bucket is too much to count: what it sends is its frames and a part for each coordinate
  const double whole = sent(kMostCounted, kMostCounted),
               half = sent(kMostCounted / 2, kMostCounted);
  const double each = (whole - half) / (kMostCounted / 2);
  return buckets * (whole - each * kMostCounted) + each * d;
}

BucketRoute route_of(const std::string& method, int world, std::size_t bucket_coords) {
  const MethodChoice choice = parse_method(method);
  const double coords = std::min(static_cast<double>(bucket_coords), kMostCounted);
  return bucket_routes(choice.name, layout_of(coords),
                       {.options = checked_options(choice),
                        .world = world,
                        .step = kSteady,
                        .bucket_coords = static_cast<std::size_t>(coords)})
      .front();
}

Sent sent_in(const std::string& method, int world, double d, std::size_t bucket_coords) {
  const BucketRoute route = route_of(method, world, bucket_coords);
  // on the one-shot route every rank does what all servers do otherwise
  return {.bytes = bytes_of(method, world, d, bucket_coords),
          .rounds = route.rounds,
          .vote_times = route.name == "one-shot" ? static_cast<double>(world) : 1.0};
}

std::uint64_t round_bytes(const NetworkModel& network, int world) {
  const double round_s = network.latency_s + network.message_s * std::max(0, world - 2);
  return static_cast<std::uint64_t>(std::clamp(round_s * network.bytes_per_s, 0.0, 0x1p40));
}

std::string on_network(const std::string& method, const NetworkModel& network, int world) {
  const MethodChoice choice = parse_method(method);
  const auto options = method_info(choice.name, world).options;
  const bool has =
      std::ranges::any_of(options, [](const auto& o) { return o.name == kRoundBytes; });
  if (!has || checked_options(choice).contains(kRoundBytes)) return method;
  return concat(method, ":", kRoundBytes, "=", round_bytes(network, world));
}

MethodModel measure_method(Communicator& comm, const std::string& method, int world, double d,
                           std::size_t bucket_coords) {
  const MethodChoice choice = parse_method(method);
  const MethodInfo info = method_info(choice.name, world);
  MethodModel model{.name = method,
                    .bytes = bytes_of(method, world, d, bucket_coords),
                    .rounds = route_of(method, world, bucket_coords).rounds};
  const double measured = std::min(d, kMostMeasured);
  const Layout layout = layout_of(measured);
  const auto alone = make_thread_world(1);
  OptimizerOptions options{.method = choice.name, .options = checked_options(choice)};
  options.bucket_coords = bucket_coords;
  model.whole_gradient =
      make_method(choice.name, {layout, 1, complete_options(choice.name, checked_options(choice))})
          ->protocol({.step = kSteady})
          .whole_gradient;
  Optimizer optimizer(*alone.front(), layout, options);
  StateDict late = optimizer.save();
  late.scalars["step"] = std::to_string(kSteady);
  optimizer.load(late);
  FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
  for (std::size_t i = 0; i < layout.tensors().front().n; ++i) {
    grads.span()[i] = static_cast<float>(static_cast<int>(i % 251) - 125);
  }
  std::vector<double> encode, vote, apply;
  for (int round = -1; round < kRounds; ++round) {
    comm.barrier();
    const StepReport report = optimizer.step(params.span(), grads.span());
    if (round < 0) continue;  // touches the memory
    encode.push_back(report.encode_s);
    vote.push_back(report.exchange_s);
    apply.push_back(report.apply_s);
  }
  const auto slowest = [&](const std::vector<double>& seconds) {
    return largest_of(comm, times_of(seconds).median_s) * d / measured;
  };
  model.encode_s = slowest(encode);
  // every rank adds what all ranks send, where that grows with N
  model.vote_s = slowest(vote) * (info.growth == "N" ? world : 1);
  model.apply_s = slowest(apply);
  return model;
}

}  // namespace pride::app
