// Exchanges through the pipeline that training uses, with encode and apply left out.
// SPDX-License-Identifier: Apache-2.0
#include "bench/exchange.h"

#include <algorithm>
#include <map>
#include <memory>

#include "core/pipeline.h"
#include "core/step_scalars.h"
#include "method_options.h"
#include "methods/registry.h"
#include "pride/bucket.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/optimizer.h"
#include "pride/registry.h"
#include "text/table.h"

namespace pride::app {
namespace {

// Threads check what takes at most so much memory and time to do again.
constexpr std::size_t kMostChecked = std::size_t{8} << 20;  // coordinates times ranks
constexpr int kMostCheckingThreads = 64;
constexpr std::int64_t kSteady = std::int64_t{1} << 40;  // a step after every method's beginning

// Encodes and applies in the first step only.
class ExchangeOnly final : public Method {
 public:
  explicit ExchangeOnly(std::unique_ptr<Method> method) : method_(std::move(method)) {}

  void only_exchange() { only_exchange_ = true; }

  bool needs_whole_gradient() const noexcept override {
    return !only_exchange_ && method_->needs_whole_gradient();
  }
  void agree(Communicator& comm, const StepContext& ctx, ConstView grad) override {
    method_->agree(comm, ctx, grad);
  }
  void encode(const Bucket& b, ConstView grad, const StepContext& ctx, Wire& wire) override {
    if (!only_exchange_) method_->encode(b, grad, ctx, wire);
  }
  void exchange(Communicator& comm, const Bucket& b, const StepContext& ctx, Wire& wire) override {
    method_->exchange(comm, b, ctx, wire);
  }
  void apply(const Bucket& b, const Wire& wire, const StepContext& ctx, View param) override {
    if (!only_exchange_) method_->apply(b, wire, ctx, param);
  }
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override {
    return method_->cost(buckets, rank, step);
  }
  void save(StateWriter& out) const override { method_->save(out); }
  void load(StateReader& in) override { method_->load(in); }
  std::uint64_t state_floats() const override { return method_->state_floats(); }

 private:
  std::unique_ptr<Method> method_;
  bool only_exchange_ = false;
};

// Small whole numbers, so that sums of floats are exact in any order.
FlatBuffer gradients(const Layout& layout, int rank) {
  FlatBuffer grads(layout.flat_size());
  auto state = 12345u + 7919u * static_cast<std::uint32_t>(rank);
  for (float& g : grads.span().first(layout.tensors().front().n)) {
    state = state * 1664525u + 1013904223u;
    g = static_cast<float>(static_cast<int>(state >> 24) - 128);
  }
  return grads;
}

// One method's exchange on one rank.
class Exchange {
 public:
  Exchange(Communicator& comm, const std::string& name, const ExchangeBench& how,
           std::size_t coords)
      : layout_({{"w", {static_cast<std::int64_t>(coords)}}}),
        params_(layout_.flat_size()),
        grads_(gradients(layout_, comm.rank())),
        absent_(1, 0) {
    const MethodInfo info = method_info(name, comm.size());
    auto made = make_method(name, {layout_, comm.rank(), comm.size(),
                                   complete_options(name, own_options(info, how)), how.hosts});
    knows_hosts_ = made->has_two_levels() && how.hosts.known();
    buckets_ = make_buckets(layout_, how.bucket_coords, comm.size(), made->alignment());
    method_ = std::make_unique<ExchangeOnly>(std::move(made));
    for (int i = 0; i < std::max(1, how.exchange_threads); ++i) comms_.push_back(comm.duplicate());
    pipeline_ =
        std::make_unique<Pipeline>(comms_, comm, *method_, buckets_, how.exchange_threads > 0);
    scalars_.push_back(scalars_of(complete_group({}, info, 0), kSteady));
    ctx_.step = kSteady;
    ctx_.rank = comm.rank();
    ctx_.world = comm.size();
    ctx_.groups = scalars_;
    ctx_.scalars_digest = digest_of(scalars_);
    ctx_.absent = absent_;
  }

  // A whole step, and the parameters' hash after it.
  std::uint64_t first_step() {
    step();
    method_->only_exchange();
    return param_hash(layout_, params_.span());
  }

  void step() {
    // held: each bucket keeps a wire of its own, which later rounds exchange again
    pipeline_->begin(ctx_, {params_.data(), params_.size()}, {grads_.data(), grads_.size()}, true);
    for (std::size_t b = 0; b < buckets_.size(); ++b) pipeline_->submit(b);
    const auto poison = pipeline_->finish();
    PRIDE_CHECK(!poison, "bench: the gradients are finite, the exchange says they are not");
  }

  // What leaves the host of this rank in a step, of this rank alone; nothing if that is not known.
  std::optional<std::uint64_t> bytes_off_host() const {
    if (!knows_hosts_) return std::nullopt;
    return method_->cost(buckets_, ctx_.rank, kSteady).bytes_off_host();
  }

  std::uint64_t bytes_sent() const {
    std::uint64_t bytes = 0;
    for (const auto& comm : comms_) bytes += comm->traffic().bytes_sent;
    return bytes;
  }

  static std::map<std::string, std::string> own_options(const MethodInfo& info,
                                                        const ExchangeBench& how) {
    auto given = parse_method_options(how.method_options);
    std::erase_if(given, [&](const auto& option) {
      return std::ranges::none_of(info.options,
                                  [&](const auto& own) { return own.name == option.first; });
    });
    return given;
  }

 private:
  Layout layout_;
  FlatBuffer params_, grads_;
  std::vector<char> absent_;
  bool knows_hosts_ = false;
  std::vector<Bucket> buckets_;
  std::unique_ptr<ExchangeOnly> method_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<StepScalars> scalars_;
  StepContext ctx_;
  std::unique_ptr<Pipeline> pipeline_;
};

// The hash that every rank must have, from threads that do the same.
std::uint64_t hash_on_threads(int world, const std::string& name, const ExchangeBench& how,
                              std::size_t coords) {
  std::uint64_t hash = 0;
  run_world(world, [&](Communicator& comm) {
    Exchange exchange(comm, name, how, coords);
    const std::uint64_t mine = exchange.first_step();
    if (comm.rank() == 0) hash = mine;
  });
  return hash;
}

template <typename T>
std::vector<T> gathered(Communicator& comm, T mine) {
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

ExchangeCell measured(Communicator& comm, const std::string& name, const ExchangeBench& how,
                      std::size_t coords) {
  ExchangeCell cell;
  cell.name = name;
  cell.coords = coords;
  Exchange exchange(comm, name, how, coords);
  const std::uint64_t before = exchange.bytes_sent();
  const auto hashes = gathered(comm, exchange.first_step());
  cell.bytes = largest_of(comm, static_cast<double>(exchange.bytes_sent() - before));
  if (const auto mine = exchange.bytes_off_host()) {
    std::vector<double> by_host(static_cast<std::size_t>(how.hosts.count()));
    const auto all = gathered(comm, *mine);
    for (int r = 0; r < comm.size(); ++r) {
      by_host[static_cast<std::size_t>(how.hosts.host_of(r))] +=
          static_cast<double>(all[static_cast<std::size_t>(r)]);
    }
    cell.bytes_off_host = std::ranges::max(by_host);
    cell.two_levels = how.hosts.two_levels();
  }
  cell.checked_on_threads =
      comm.size() <= kMostCheckingThreads && coords * hashes.size() <= kMostChecked;
  std::uint64_t right = hashes.front();
  if (cell.checked_on_threads && comm.rank() == 0) {
    ExchangeBench one_level = how;
    one_level.hosts = {};
    right = hash_on_threads(comm.size(), name, one_level, coords);
  }
  comm.broadcast(std::as_writable_bytes(std::span(&right, 1)), 0);
  cell.wrong_ranks = static_cast<int>(
      std::ranges::count_if(hashes, [&](std::uint64_t hash) { return hash != right; }));
  cell.times = measure(comm, how.seconds, how.least, [&] { exchange.step(); });
  return cell;
}

// The transport's own all-reduce of float32, without division by N or any optimizer step.
ExchangeCell measured_native_sum(Communicator& comm, const ExchangeBench& how, std::size_t coords) {
  ExchangeCell cell;
  cell.name = std::string(comm.transport()) + " all-reduce fp32";
  cell.coords = coords;
  cell.counted = false;
  cell.bytes = fp32_ring_bytes(static_cast<double>(coords), comm.size());
  const Layout layout({{"w", {static_cast<std::int64_t>(coords)}}});
  FlatBuffer expected(layout.flat_size());
  for (int r = 0; r < comm.size(); ++r) {
    const FlatBuffer theirs = gradients(layout, r);
    for (std::size_t i = 0; i < expected.size(); ++i) expected.span()[i] += theirs.span()[i];
  }
  FlatBuffer values = gradients(layout, comm.rank());
  comm.native_sum(values.span());
  const bool right = std::ranges::equal(values.span(), expected.span());
  const auto all = gathered(comm, static_cast<char>(right ? 0 : 1));
  cell.wrong_ranks = static_cast<int>(std::ranges::count(all, 1));
  std::ranges::fill(values.span(), 0.0f);  // sums of sums would leave the range of floats
  cell.times = measure(comm, how.seconds, how.least, [&] { comm.native_sum(values.span()); });
  return cell;
}

}  // namespace

double ExchangeCell::algorithm_bandwidth() const {
  return 4 * static_cast<double>(coords) / times.median_s;
}

double ExchangeCell::bus_bandwidth() const { return bytes / times.median_s; }

void bench_exchange(Communicator& comm, const ExchangeBench& how, const NetworkFacts& network,
                    const std::function<void(const ExchangeCell&)>& done) {
  const auto finish = [&](ExchangeCell cell) {
    const double best = std::max(network.goodput, network.pair_goodput);
    if (best > 0) cell.limit_s = cell.bytes / best;
    done(cell);
  };
  for (const std::size_t coords : how.sizes) {
    for (const std::string& name : how.methods) finish(measured(comm, name, how, coords));
    finish(measured_native_sum(comm, how, coords));
  }
}

}  // namespace pride::app
