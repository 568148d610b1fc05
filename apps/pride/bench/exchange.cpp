// Exchanges through training's pipeline, without encode and apply.
// SPDX-License-Identifier: Apache-2.0
#include "bench/exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <type_traits>

#include "base/bucket.h"
#include "methods/registry.h"
#include "optimizer/pipeline.h"
#include "optimizer/step_scalars.h"
#include "pride/bf16.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "pride/registry.h"
#include "program/settings.h"
#include "program/table.h"

namespace pride::app {
namespace {

// Results up to this size are checked by the same exchange on threads.
constexpr std::size_t kMostChecked = std::size_t{8} << 20;  // coordinates times ranks
constexpr int kMostCheckingThreads = 64;
constexpr std::int64_t kSteady = std::int64_t{1} << 40;  // a step after every method's first phase

// The last step of `step`'s period, in which every method exchanges.
std::int64_t last_of_period(std::int64_t step, std::int64_t period) {
  return step - step % period + period - 1;
}

// A method that encodes and applies until only_exchange() is called.
class ExchangeOnly final : public Method {
 public:
  explicit ExchangeOnly(std::unique_ptr<Method> method)
      : Method(*method), method_(std::move(method)) {}

  void only_exchange() { only_exchange_ = true; }

  Protocol protocol(const SharedContext& shared) const override {
    Protocol protocol = method_->protocol(shared);
    protocol.whole_gradient = protocol.whole_gradient && !only_exchange_;
    return protocol;
  }
  std::vector<Part> parts(const Bucket& b, const SharedContext& shared) const override {
    return method_->parts(b, shared);
  }
  void encode_preliminary(const StepContext& ctx, GradientView grad, Wire& preliminary) override {
    method_->encode_preliminary(ctx, grad, preliminary);
  }
  void take_preliminary(const StepContext& ctx, const Wire& preliminary) override {
    method_->take_preliminary(ctx, preliminary);
  }
  void tensor_ready(std::size_t tensor, const StepContext& ctx, GradientView grad) override {
    if (!only_exchange_) method_->tensor_ready(tensor, ctx, grad);
  }
  void encode(const Bucket& b, const StepContext& ctx, Flight& flight) override {
    if (!only_exchange_) return method_->encode(b, ctx, flight);
    // integers are summed in place; without this, sums of sums would overflow
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      const Part& part = flight.parts[k];
      if (part.route != Route::kNative || part.sum == Sum::kFloat32) continue;
      std::ranges::fill(flight.wire(k).room.span(), std::byte{0});
    }
  }
  void serve(const Part& part, const Shard& shard, const VoterFrames& voters,
             const SharedContext& shared, Reply& reply) const override {
    method_->serve(part, shard, voters, shared, reply);
  }
  void apply(const Bucket& b, const Flight& flight, const StepContext& ctx, View param) override {
    if (!only_exchange_) method_->apply(b, flight, ctx, param);
  }

 private:
  std::unique_ptr<Method> method_;
  bool only_exchange_ = false;
};

// Whole numbers from -most to most - 1, so that sums of floats are exact in any order.
void fill_gradients(int rank, std::uint32_t most, std::span<float> grads) {
  auto state = 12345u + 7919u * static_cast<std::uint32_t>(rank);
  for (float& g : grads) {
    state = state * 1664525u + 1013904223u;
    g = static_cast<float>((state >> 24) % (2 * most)) - static_cast<float>(most);
  }
}

FlatBuffer gradients(const Layout& layout, int rank) {
  FlatBuffer grads(layout.flat_size());
  fill_gradients(rank, 128, grads.span().first(layout.tensors().front().n));
  return grads;
}

bool has_option(const std::string& method, const std::string& key) {
  const auto options = method_info(parse_method(method).name, 1).options;
  return std::ranges::any_of(options, [&](const auto& option) { return option.name == key; });
}

// A method's options: its own, and those of --method-opt that it has.
std::map<std::string, std::string> options_of(const MethodChoice& choice, const MethodBench& how) {
  auto options = checked_options(choice);
  for (const auto& [key, value] : parse_method_options(how.method_options)) {
    if (has_option(choice.name, key)) options.emplace(key, value);
  }
  return options;
}

// One method's exchange on one rank.
class Exchange {
 public:
  Exchange(Communicator& comm, const MethodChoice& choice, const MethodBench& how,
           std::size_t coords)
      : layout_({{"w", {static_cast<std::int64_t>(coords)}}}),
        params_(layout_.flat_size()),
        grads_(gradients(layout_, comm.rank())),
        sections_(layout_, {.method = choice.name, .options = options_of(choice, how)},
                  comm.size()) {
    const Section& section = sections_[0];
    auto made = make_method(section.method, {layout_, comm.size(), section.options, how.nodes});
    made->state().allocate(layout_.flat_size());
    scalars_.push_back(scalars_of(complete_group({}, section.info, 0), kSteady));
    StepContext ctx;
    ctx.step = last_of_period(kSteady, section.info.period);
    ctx.rank = comm.rank();
    ctx.voters = comm.size();
    ctx.groups = scalars_;
    ctx.x = {.flat = params_.span()};
    ctx.scalars_digest = digest_of(scalars_);
    const Protocol protocol = made->protocol(ctx);
    if (protocol.hierarchical) nodes_ = how.nodes;
    PRIDE_CHECK(
        protocol.delay == 0, "bench exchange: ", choice.name,
        ": option delay: an exchange is waited for at once here; `pride bench step` has it");
    auto method = std::make_unique<ExchangeOnly>(std::move(made));
    method_ = method.get();
    SectionStep& step = steps_.emplace_back(section, std::move(method), Space::host());
    sections_.cut(steps_, how.bucket_coords, comm.size());
    step.ctx = ctx;
    step.ctx.unused = step.unused = {0};
    step.protocol = method_->protocol(ctx);
    step.x = {.flat = params_.span()};
    step.grads = {.flat = grads_.data()};
    for (int i = 0; i < std::max(1, how.exchange_threads); ++i) comms_.push_back(comm.duplicate());
    pipeline_ = std::make_unique<Pipeline>(comms_, comm, sections_, steps_, nodes_,
                                           how.exchange_threads > 0);
  }

  // The parameters' hash after a whole step.
  std::uint64_t first_step() {
    step();
    method_->only_exchange();
    return param_hash(layout_, params_.span());
  }

  void step() {
    // held (true): each bucket keeps its own flight, which later steps exchange again
    steps_[0].protocol = method_->protocol(steps_[0].ctx);
    pipeline_->begin(true);
    pipeline_->tensor_ready(0, 0);
    for (std::size_t b = 0; b < buckets().size(); ++b) pipeline_->submit(b);
    const auto non_finite = pipeline_->finish();
    PRIDE_CHECK(!non_finite, "bench: the gradients are finite, the exchange says they are not");
  }

  // Bytes that leave the node that sends most; none if nodes are unknown or not used.
  std::optional<double> bytes_off_node() const {
    if (!nodes_.known()) return std::nullopt;
    std::vector<double> by_node(static_cast<std::size_t>(nodes_.count()));
    const auto costs = step_costs(*method_, buckets(), steps_[0].ctx, nodes_);
    for (int r = 0; r < std::ssize(costs); ++r) {
      by_node[static_cast<std::size_t>(nodes_.node_of(r))] +=
          static_cast<double>(costs[static_cast<std::size_t>(r)].bytes_off_node());
    }
    return std::ranges::max(by_node);
  }

  // "mixed" if buckets differ.
  std::string route() const {
    std::set<std::string_view> routes;
    for (const Bucket& b : buckets()) {
      routes.insert(route_name(main_route(method_->parts(b, steps_[0].ctx))));
    }
    return routes.size() == 1 ? std::string(*routes.begin()) : "mixed";
  }

  std::uint64_t bytes_sent() const {
    std::uint64_t bytes = 0;
    for (const auto& comm : comms_) bytes += comm->traffic().bytes_sent;
    return bytes;
  }

 private:
  const std::vector<Bucket>& buckets() const { return sections_[0].buckets; }

  Layout layout_;
  FlatBuffer params_, grads_;
  Nodes nodes_;
  Sections sections_;
  std::vector<SectionStep> steps_;
  ExchangeOnly* method_ = nullptr;  // of the step
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<StepScalars> scalars_;
  std::unique_ptr<Pipeline> pipeline_;
};

// The parameters' hash that every rank must have, from an exchange on threads.
std::uint64_t hash_on_threads(int world, const MethodChoice& choice, const MethodBench& how,
                              std::size_t coords) {
  std::uint64_t hash = 0;
  run_world(world, [&](Communicator& comm) {
    Exchange exchange(comm, choice, how, coords);
    const std::uint64_t mine = exchange.first_step();
    if (comm.rank() == 0) hash = mine;
  });
  return hash;
}

// The stated bytes of the rank that sends most.
Cost stated_cost(const MethodChoice& choice, const MethodBench& how, std::size_t coords,
                 int world) {
  const MethodInfo info = method_info(choice.name, world, options_of(choice, how));
  return largest_cost(choice.name, Layout({{"w", {static_cast<std::int64_t>(coords)}}}),
                      {.options = options_of(choice, how),
                       .world = world,
                       .step = last_of_period(kSteady, info.period),
                       .bucket_coords = how.bucket_coords});
}

ExchangeCell measured(Communicator& comm, const std::string& text, const MethodBench& how,
                      std::size_t coords) {
  const MethodChoice choice = parse_method(text);
  Exchange exchange(comm, choice, how, coords);
  ExchangeCell cell{.name = text, .coords = coords, .route = exchange.route()};
  const std::uint64_t before = exchange.bytes_sent();
  const auto hashes = gathered(comm, exchange.first_step());
  const Cost cost = stated_cost(choice, how, coords, comm.size());
  cell.counted = cost.bound;
  const auto counted = static_cast<double>(exchange.bytes_sent() - before);
  cell.bytes = cell.counted ? largest_of(comm, counted) : static_cast<double>(cost.bytes());
  cell.bytes_off_node = exchange.bytes_off_node();
  const bool on_threads =
      comm.size() <= kMostCheckingThreads && coords * hashes.size() <= kMostChecked;
  cell.checked_against = on_threads ? "threads" : "rank 0";
  std::uint64_t right = hashes.front();
  if (on_threads && comm.rank() == 0) {
    MethodBench without_nodes = how;
    without_nodes.nodes = {};
    right = hash_on_threads(comm.size(), choice, without_nodes, coords);
  }
  comm.broadcast(std::as_writable_bytes(std::span(&right, 1)), 0);
  cell.wrong_ranks = count_ranks(comm, hashes[static_cast<std::size_t>(comm.rank())] != right);
  cell.times = measure(comm, how.seconds, how.least, [&] { exchange.step(); });
  return cell;
}

// Small integers, so that no sum over the ranks is rounded: bfloat16 is exact up to 256.
std::vector<float> terms(int rank, int world, bool wide, std::size_t coords) {
  const auto most = wide ? 128 : static_cast<std::uint32_t>(std::max(1, 256 / world));
  std::vector<float> numbers(coords);
  if (wide || rank < 256) fill_gradients(rank, most, numbers);
  return numbers;
}

std::vector<float> sum_of_terms(int world, bool wide, std::size_t coords) {
  std::vector<float> sum(coords);
  for (int r = 0; r < world; ++r) {
    std::ranges::transform(terms(r, world, wide, coords), sum, sum.begin(), std::plus<>());
  }
  return sum;
}

template <typename T>
std::vector<T> narrowed(const std::vector<float>& numbers) {
  if constexpr (std::is_same_v<T, float>) return numbers;
  std::vector<T> values(numbers.size());
  if constexpr (!std::is_same_v<T, float>) to_bf16(numbers, values);
  return values;
}

// The transport's own all-reduce, without division by N and without an optimizer step.
template <typename T>
ExchangeCell measured_native_sum(Communicator& comm, const MethodBench& how, std::size_t coords) {
  const bool wide = std::is_same_v<T, float>;
  const double ring = fp32_ring_bytes(static_cast<double>(coords), comm.size());
  ExchangeCell cell{.name = concat(comm.transport(), " all-reduce ", wide ? "fp32" : "bf16"),
                    .coords = coords,
                    .bytes = wide ? ring : ring / 2,
                    .counted = false,
                    .checked_against = "the exact sum"};
  auto values = narrowed<T>(terms(comm.rank(), comm.size(), wide, coords));
  comm.native_sum(std::span(values));
  const bool right = values == narrowed<T>(sum_of_terms(comm.size(), wide, coords));
  cell.wrong_ranks = count_ranks(comm, !right);
  std::ranges::fill(values, T{});  // without this, sums of sums would overflow
  cell.times = measure(comm, how.seconds, how.least, [&] { comm.native_sum(std::span(values)); });
  return cell;
}

// A copy of the gradients in each rank's memory, on all ranks at the same time.
ExchangeCell measured_memcpy(Communicator& comm, const MethodBench& how, std::size_t coords) {
  ExchangeCell cell{.name = "memcpy", .coords = coords, .checked_against = "its source"};
  const std::vector<float> from = terms(comm.rank(), comm.size(), true, coords);
  std::vector<float> to(coords);
  cell.times = measure(comm, how.seconds, how.least,
                       [&] { std::memcpy(to.data(), from.data(), coords * sizeof(float)); });
  cell.wrong_ranks = count_ranks(comm, to != from);
  return cell;
}

}  // namespace

double ExchangeCell::algorithm_bandwidth() const {
  return 4 * static_cast<double>(coords) / times.median_s;
}

double ExchangeCell::bus_bandwidth() const { return bytes / times.median_s; }

void check_options(const MethodBench& how, int world) {
  for (const std::string& text : how.methods) {
    const MethodChoice choice = parse_method(text);
    const Layout layout({{"w", {64}}});
    method_cost(choice.name, layout, {.options = options_of(choice, how), .world = world});
  }
  for (const auto& [key, value] : parse_method_options(how.method_options)) {
    const auto has = [&](const std::string& method) { return has_option(method, key); };
    PRIDE_CHECK(std::ranges::any_of(how.methods, has), "--method-opt ", key, "=", value,
                ": none of the methods has an option '", key, "'");
  }
}

void bench_exchange(Communicator& comm, const MethodBench& how, const NetworkFacts& network,
                    const std::function<void(const ExchangeCell&)>& done) {
  const auto finish = [&](ExchangeCell cell) {
    const double best = std::max(network.goodput, network.pair_goodput);
    if (best > 0) cell.limit_s = cell.bytes / best;
    done(cell);
  };
  for (const std::size_t coords : how.sizes) {
    // for a method: gradients, parameters and state, without frames
    const auto with_memory = [&](const std::string& row, int floats, const auto& work) {
      const auto n = static_cast<double>(coords);
      return with_memory_for(concat(row, " of ", grouped(n), " coordinates"), 4 * n * floats, work);
    };
    for (const std::string& name : how.methods) {
      const MethodChoice choice = parse_method(name);
      const int state = state_of(choice.name, Layout({{"w", {1}}}), checked_options(choice)).floats;
      finish(with_memory(name, 2 + state, [&] { return measured(comm, name, how, coords); }));
    }
    finish(with_memory("all-reduce fp32", 4,
                       [&] { return measured_native_sum<float>(comm, how, coords); }));
    finish(with_memory("all-reduce bf16", 3,
                       [&] { return measured_native_sum<BFloat16>(comm, how, coords); }));
    done(with_memory("memcpy", 2, [&] { return measured_memcpy(comm, how, coords); }));
  }
}

}  // namespace pride::app
