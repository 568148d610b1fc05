// One rank's step without peers, timed phase by phase.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "methods/registry.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#include "pride/plan.h"
#include "pride/registry.h"
#include "rules/orthogonalise.h"

namespace pride {
namespace {

constexpr double kMostMeasured = 4 << 20;                // coordinates
constexpr double kMostCounted = 1e7;                     // the same, for counted bytes
constexpr std::int64_t kSteady = std::int64_t{1} << 40;  // past every method's warm-up
constexpr int kRepetitions = 7;
// not too small: a bucket's own cost (locks, frames, small messages) is not in the model
constexpr double kSmallestBucket = 1 << 20;               // coordinates
constexpr double kLargestBucket = std::int64_t{1} << 33;  // as in `pride bench exchange`
constexpr int kMostBuckets = 1024;
constexpr std::size_t kMeasuredSide = 512;  // of a square matrix
constexpr int kMeasuredIterations = 5;
constexpr const char* kBandwidthDelay = "bandwidth_delay_bytes";

Layout layout_of(double d) { return Layout({{"w", {static_cast<std::int64_t>(d)}}}); }

}  // namespace

double bytes_of(const PlanMethod& method, int world, double d, std::size_t bucket_coords) {
  const auto sent = [&](double coords, double bucket) {
    const Cost cost = largest_cost(method.name, layout_of(coords),
                                   {.options = method.options,
                                    .world = world,
                                    .step = kSteady,
                                    .mean = true,
                                    .bucket_coords = static_cast<std::size_t>(bucket)});
    return static_cast<double>(cost.bytes());
  };
  const double size = std::min(static_cast<double>(bucket_coords), d);
  const double buckets = std::ceil(d / size);
  if (size <= kMostCounted) {
    const double some = std::min(buckets, std::floor(kMostCounted / size));
    return sent(std::min(some * size, d), size) * (buckets / some);
  }
  // a bucket too large to count: a constant for its frames, and a term proportional to its size
  const double whole = sent(kMostCounted, kMostCounted),
               half = sent(kMostCounted / 2, kMostCounted);
  const double each = (whole - half) / (kMostCounted / 2);
  return buckets * (whole - each * kMostCounted) + each * d;
}

BucketRoute route_of(const PlanMethod& method, int world, std::size_t bucket_coords) {
  const double coords = std::min(static_cast<double>(bucket_coords), kMostCounted);
  return bucket_routes(method.name, layout_of(coords),
                       {.options = method.options,
                        .world = world,
                        .step = kSteady,
                        .bucket_coords = static_cast<std::size_t>(coords)})
      .front();
}

Sent sent_in(const PlanMethod& method, int world, double d, std::size_t bucket_coords) {
  const BucketRoute route = route_of(method, world, bucket_coords);
  // on the one-shot route every rank does the work of all servers
  return {.bytes = bytes_of(method, world, d, bucket_coords),
          .phases = route.phases,
          .vote_times = route.name == "one-shot" ? static_cast<double>(world) : 1.0};
}

std::uint64_t bandwidth_delay_bytes(const NetworkModel& network, int world) {
  const double phase_s = network.latency_s + network.message_s * std::max(0, world - 2);
  return static_cast<std::uint64_t>(std::clamp(phase_s * network.bytes_per_s, 0.0, 0x1p40));
}

PlanMethod on_network(const PlanMethod& method, const NetworkModel& network, int world) {
  const auto set = [&](const std::string& name, auto& values) {
    const auto options = method_info(name, world).options;
    const bool has = std::ranges::count(options, kBandwidthDelay, &MethodOption::name) > 0;
    if (has) values.emplace(kBandwidthDelay, concat(bandwidth_delay_bytes(network, world)));
  };
  PlanMethod chosen = method;
  set(chosen.name, chosen.options);
  for (ParamGroup& group : chosen.groups) {
    if (!group.method.empty()) set(group.method, group.options);
  }
  return chosen;
}

Layout transformer_layout(double params) {
  constexpr double kOfBlock = 12,
                   kWidthOfBlocks = 64;  // parameters: 12 w^2 in each of w / 64 blocks
  const double width = std::cbrt(params * kWidthOfBlocks / kOfBlock);
  // fewer parameters than one block of width 64: a narrower block
  const auto w = params < kOfBlock * 64 * 64
                     ? std::max<std::int64_t>(1, std::llround(std::sqrt(params / kOfBlock)))
                     : std::max<std::int64_t>(64, 64 * std::llround(width / 64));
  const double of_block = kOfBlock * static_cast<double>(w) * static_cast<double>(w);
  const auto blocks = std::max<std::int64_t>(1, std::llround(params / of_block));
  std::vector<TensorSpec> tensors;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::string name = concat("block.", i, ".");
    tensors.push_back({name + "qkv", {3 * w, w}});
    tensors.push_back({name + "projection", {w, w}});
    tensors.push_back({name + "up", {4 * w, w}});
    tensors.push_back({name + "down", {w, 4 * w}});
  }
  return Layout(tensors);
}

namespace {

struct Times {
  double encode_s = 0, vote_s = 0, apply_s = 0;
};

// Times of a method's encode, vote and apply for d coordinates. If d is large, a part is measured.
// All ranks of `comm` measure at once, each without peers; the slowest rank's times are returned:
// ranks on one machine slow each other down here as in training. Collective.
Times measure_times(Communicator& comm, const std::string& method,
                    const std::map<std::string, std::string>& method_options, double d,
                    std::size_t bucket_coords) {
  const double measured = std::min(d, kMostMeasured);
  const Layout layout = layout_of(measured);
  const auto alone = make_thread_world(1);
  OptimizerOptions options{.method = method, .options = method_options};
  options.bucket_coords = bucket_coords;
  Optimizer optimizer(*alone.front(), layout, options);
  StateDict late = optimizer.save();
  late.scalars["step"] = std::to_string(kSteady);
  optimizer.load(late);
  FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
  for (std::size_t i = 0; i < layout.tensors().front().n; ++i) {
    grads.span()[i] = static_cast<float>(static_cast<int>(i % 251) - 125);
  }
  std::vector<double> encode, vote, apply;
  for (int repetition = -1; repetition < kRepetitions; ++repetition) {
    comm.barrier();
    const StepReport report = optimizer.step(params.span(), grads.span());
    if (repetition < 0) continue;  // the first only touches the memory
    encode.push_back(report.encode_s);
    vote.push_back(report.exchange_s);
    apply.push_back(report.apply_s);
  }
  const auto slowest = [&](std::vector<double> seconds) {
    const auto middle = seconds.begin() + kRepetitions / 2;
    std::ranges::nth_element(seconds, middle);
    std::vector<double> all(static_cast<std::size_t>(comm.size()));
    comm.all_gather(std::as_bytes(std::span(&*middle, 1)), std::as_writable_bytes(std::span(all)));
    return *std::ranges::max_element(all) * d / measured;
  };
  return {slowest(encode), slowest(vote), slowest(apply)};
}

// Sets the exchanges in a period and the delay of a method with local steps.
void set_period(MethodModel& model, const PlanMethod& method, double d) {
  const Layout layout = transformer_layout(std::min(d, kMostMeasured));
  const auto made =
      make_method(method.name, {layout, 1, complete_options(method.name, method.options)});
  model.exchanges = 0;
  for (std::int64_t i = 0; i < model.period; ++i) {
    const Protocol protocol = made->protocol({.step = kSteady + i});
    model.exchanges += protocol.exchanges ? 1 : 0;
    model.delay = protocol.delay;
  }
}

// Options with which a method with local steps exchanges everything at once, every h-th step.
std::map<std::string, std::string> with_period(std::map<std::string, std::string> options,
                                               const char* h) {
  options["h"] = h;
  options["fragments"] = "1";
  options["delay"] = "0";
  return options;
}

// A method's arithmetic, bytes and phases on `world` ranks. Collective.
MethodModel measure_method(Communicator& comm, const PlanMethod& method, int world, double d,
                           std::size_t bucket_coords) {
  const MethodInfo info = method_info(method.name, world, method.options);
  MethodModel model{.name = method.name,
                    .bytes = bytes_of(method, world, d, bucket_coords),
                    .phases = route_of(method, world, bucket_coords).phases,
                    .period = info.period};
  auto options = method.options;
  if (model.period > 1) {
    set_period(model, method, d);
    // no step measured from kSteady on is the last of a period of 1,000
    const Times local =
        measure_times(comm, method.name, with_period(options, "1000"), d, bucket_coords);
    model.local_s = local.encode_s + local.apply_s;
    options = with_period(options, "1");
  }
  model.whole_gradient =
      make_method(method.name, {layout_of(1), 1, complete_options(method.name, options)})
          ->protocol({.step = kSteady})
          .whole_gradient;
  const Times times = measure_times(comm, method.name, options, d, bucket_coords);
  model.encode_s = times.encode_s;
  // growth "N": every rank sums the data of all ranks
  model.vote_s = times.vote_s * (info.growth == "N" ? world : 1);
  model.apply_s = times.apply_s;
  return model;
}

// Operations of Newton-Schulz per second, on the slowest rank; all ranks of `comm` measure at once.
// The square matrix has the largest shorter side among the tensors, at most kMeasuredSide.
// Collective.
double measured_matrix_speed(Communicator& comm, const Layout& tensors) {
  std::size_t side = 1;
  for (const TensorSlot& slot : tensors.tensors()) {
    const auto rows = static_cast<std::size_t>(slot.spec.shape.empty() ? 1 : slot.spec.shape[0]);
    if (rows > 0) side = std::max(side, std::min({rows, slot.n / rows, kMeasuredSide}));
  }
  std::vector<float> u(side * side, 1.0f);
  for (std::size_t i = 0; i < u.size(); ++i) u[i] = static_cast<float>(i * i % 251);
  rules::Orthogonaliser newton_schulz(kMeasuredIterations);
  double best = HUGE_VAL;
  for (int repetition = 0; repetition < 3; ++repetition) {
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    newton_schulz.run({u.data(), side, side, side});
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&best, 1)), std::as_writable_bytes(std::span(all)));
  return rules::newton_schulz_operations(side, side, kMeasuredIterations) /
         *std::ranges::max_element(all);
}

Layout tensors_of(const PlanFacts& facts) {
  return facts.tensors.tensors().empty() ? transformer_layout(facts.params) : facts.tensors;
}

// Seconds of Newton-Schulz for all matrices of the model. Collective.
double matrix_seconds(Communicator& comm, const Layout& tensors, double operations,
                      PlanFacts& facts) {
  if (operations == 0) return 0;
  if (facts.matrix_speed == 0) facts.matrix_speed = measured_matrix_speed(comm, tensors);
  return operations / facts.matrix_speed;
}

// All of the method's arithmetic. Collective.
MethodModel arithmetic_of(Communicator& comm, const PlanMethod& method, std::size_t bucket_coords,
                          PlanFacts& facts) {
  MethodModel model = measure_method(comm, method, facts.world, facts.params, bucket_coords);
  const Layout tensors = tensors_of(facts);
  const double operations =
      matrix_operations(method.name, tensors, {.options = method.options, .world = facts.world});
  const bool there = facts.device.bytes_per_s > 0;
  const bool dense = is_uncompressed(method, facts.world);
  if (!there || (!dense && !why_host_only(method.name, method.options).empty())) {
    model.matrix_s = matrix_seconds(comm, tensors, operations, facts);
    model.encode_s += model.matrix_s;
    if (model.period > 1) model.local_s += model.matrix_s;
  }
  if (!there) return model;
  return on_device(facts.device, model, method, facts.world, facts.params, operations);
}

// A section with its share of the facts, and its model.
struct SectionModel {
  PlanMethod method;
  PlanFacts facts;
  MethodModel model = {};
};

std::vector<SectionModel> section_models(const PlanMethod& given, const PlanFacts& facts) {
  const PlanMethod method = on_network(given, facts.network, facts.world);
  if (method.groups.empty()) return {{method, facts}};
  std::vector<SectionModel> sections;
  for (PlanSection& found : sections_of(method, facts.tensors, facts.world)) {
    sections.push_back({std::move(found.method), facts});
    sections.back().facts.params = static_cast<double>(found.tensors.n_coords());
    sections.back().facts.tensors = std::move(found.tensors);
  }
  PRIDE_CHECK(!sections.empty(), "plan: ", given.name, " has groups: give the model's tensors");
  return sections;
}

// Adds a section's bytes and arithmetic to the others'.
void add(const MethodModel& own, MethodModel& all) {
  for (const auto value : {&MethodModel::bytes, &MethodModel::encode_s, &MethodModel::matrix_s,
                           &MethodModel::vote_s, &MethodModel::apply_s, &MethodModel::local_s}) {
    all.*value += own.*value;
  }
  all.phases = std::max(all.phases, own.phases);
  all.exchanges = std::max(all.exchanges, own.exchanges);
  all.delay = std::max(all.delay, own.delay);
  all.whole_gradient = all.whole_gradient || own.whole_gradient;
}

// A section's buckets of this size, or its only one.
std::size_t bucket_of(const SectionModel& section, std::size_t coords) {
  return std::min(coords, static_cast<std::size_t>(section.facts.params));
}

// What all sections send in buckets of this size.
Sent sent_in(const std::vector<SectionModel>& sections, std::size_t bucket_coords) {
  Sent all{.bytes = 0, .phases = 0, .vote_times = 0};
  double vote_s = 0;
  for (const SectionModel& section : sections) {
    const Sent own = sent_in(section.method, section.facts.world, section.facts.params,
                             bucket_of(section, bucket_coords));
    all.bytes += own.bytes;
    all.phases = std::max(all.phases, own.phases);
    all.vote_times += own.vote_times * section.model.vote_s;
    vote_s += section.model.vote_s;
  }
  all.vote_times = vote_s > 0 ? all.vote_times / vote_s : 1;
  return all;
}

// "sharded", or the different routes of the sections: "sharded, one-shot".
std::string route_of(const std::vector<SectionModel>& sections, std::size_t bucket_coords) {
  std::vector<std::string> names;
  std::string text;
  for (const SectionModel& section : sections) {
    const std::string name =
        route_of(section.method, section.facts.world, bucket_of(section, bucket_coords)).name;
    if (std::ranges::count(names, name) > 0) continue;
    text += (names.empty() ? "" : ", ") + name;
    names.push_back(name);
  }
  return text;
}

}  // namespace

PlanRow plan_step(Communicator& comm, const PlanMethod& given, PlanFacts& facts) {
  PlanRow row;
  std::vector<SectionModel> sections = section_models(given, facts);
  row.dense = std::ranges::all_of(sections, [&](const SectionModel& section) {
    return is_uncompressed(section.method, facts.world);
  });
  StepModel step{.world = facts.world,
                 .compute_s = facts.compute_s,
                 .exchange_threads = facts.exchange_threads,
                 .cores = facts.cores};
  const auto coords_of = [&](int buckets) {
    return static_cast<std::size_t>(std::ceil(facts.params / buckets));
  };
  for (SectionModel& section : sections) {
    section.facts.matrix_speed = facts.matrix_speed;
    section.model = arithmetic_of(comm, section.method, coords_of(8), section.facts);
    facts.matrix_speed = section.facts.matrix_speed;
  }
  MethodModel model = sections.front().model;
  for (const SectionModel& section : std::span(sections).subspan(1)) add(section.model, model);
  model.name = given.name;
  const auto sent = [&](int buckets) { return sent_in(sections, coords_of(buckets)); };
  const auto number = [](double n) {
    return static_cast<int>(std::clamp(n, 1.0, double{kMostBuckets}));
  };
  const BucketRange range{.fewest = number(std::ceil(facts.params / kLargestBucket)),
                          .most = number(facts.params / kSmallestBucket)};
  row.buckets = best_buckets(facts.network, model, step, range, sent);
  row.method = with(model, sent(row.buckets));
  row.route = route_of(sections, coords_of(row.buckets));
  step.buckets = row.buckets;
  row.in_order = predict(facts.network, row.method, step, false);
  row.overlapped = predict(facts.network, row.method, step, true);
  const NetworkModel none{.bytes_per_s = HUGE_VAL};
  row.no_network_s = std::min(predict(none, row.method, step, false).step_s,
                              predict(none, row.method, step, true).step_s);
  return row;
}

}  // namespace pride
