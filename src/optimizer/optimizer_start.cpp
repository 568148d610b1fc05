// Construction of an optimizer: this rank's own checks, then the agreement of all ranks.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/digest.h"
#include "codecs/frame.h"
#include "device/device_space.h"
#include "methods/registry.h"
#include "methods/vote_weights.h"
#include "optimizer/optimizer_impl.h"
#include "optimizer/replica.h"
#include "optimizer/resharding.h"
#include "pride/cpu.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr int kMostExchangeThreads = 16;

}  // namespace

Optimizer::Impl::Impl(Communicator& user_comm, Layout the_layout, OptimizerOptions the_options)
    : caller(user_comm),
      layout(std::move(the_layout)),
      options(std::move(the_options)),
      own_space(options.device ? std::make_unique<DeviceSpace>(options.device)
                               : Space::make_host()),
      space(*own_space) {
  // a rank with unusable settings still calls the collective check, where the others wait for it
  std::exception_ptr unusable;
  std::vector<std::int64_t> given_weights;
  try {
    prepare(user_comm);
    method->state().allocate(layout.flat_size(), space);
  } catch (const InvalidArgument&) {
    unusable = std::current_exception();
  } catch (const OutOfMemory&) {
    unusable = std::current_exception();
  }
  check_accepted(user_comm, Call::kConstruct, unusable != nullptr);
  if (unusable) std::rethrow_exception(unusable);
  given_weights = check_ranks_agree(user_comm);
  const int size = world_of(user_comm);
  if (options.virtual_workers > 0) {
    given_weights.assign(options.worker_weights.begin(), options.worker_weights.end());
    given_weights.resize(static_cast<std::size_t>(size), options.vote_weight);
  }
  weights = vote_weights(options.method, method->protocol({.voters = size}), options.nodes,
                         given_weights);
  if (options.virtual_workers > 0) {
    workers = std::make_unique<VirtualWorkers>(layout, options, *method, buckets, space);
  }
  parameters = std::make_unique<PlacedParameters>(layout, space);

  const int n_comms = options.overlap ? options.exchange_threads : 1;
  for (int i = 0; i < n_comms; ++i) {
    comms.push_back(user_comm.duplicate());
    comms.back()->set_timeout(user_comm.timeout());
  }
  pipeline = std::make_unique<Pipeline>(comms, user_comm, *method, buckets, options.nodes,
                                        options.overlap, space, options.sum_of_parts);
  pipeline->before_apply(options.before_apply);

  buckets_of_tensor.resize(layout.tensors().size());
  tensors_of_bucket.resize(buckets.size());
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const Shard& shard : buckets[b].shards) {
      for (const Piece& piece : shard.pieces) {
        auto& list = buckets_of_tensor[piece.tensor];
        if (!list.empty() && list.back() == b) continue;  // another shard of the same bucket
        list.push_back(b);
        ++tensors_of_bucket[b];
      }
    }
  }
}

// The checks that need no other rank. Throws InvalidArgument.
void Optimizer::Impl::prepare(const Communicator& user_comm) {
  active_isa();  // an unusable PRIDE_ISA is reported here; kernels cannot
  check_virtual_workers(user_comm);
  const int size = world_of(user_comm);
  PRIDE_CHECK(size <= kMaxWorld, "optimizer: ", size, " ranks, must be at most ", kMaxWorld);
  info = method_info(options.method, size);
  PRIDE_CHECK(size <= info.max_world, "optimizer: ", options.method, " on ", size,
              " ranks, supports at most ", info.max_world);
  PRIDE_CHECK(static_cast<std::size_t>(layout.n_groups()) <= options.groups.size(),
              "optimizer: the layout has ", layout.n_groups(), " groups, the options ",
              options.groups.size());
  PRIDE_CHECK(
      !options.device || info.on_device, "optimizer: ", options.method,
      " is not supported on a device; use tensors in host memory, or one of these methods: ",
      methods_on_devices());
  options.options = complete_options(options.method, options.options);
  method = make_method(
      options.method, {layout, size, options.options, options.nodes, space, options.orthogonalise});
  method->describe(info);
  // words may name tensors of other parts, and decide nothing if the caller does
  const auto whole = [](const TensorSlot& slot) { return !slot.spec.first_coord; };
  const auto by_name = [](const TensorSlot& slot) {
    return slot.spec.as_matrix == AsMatrix::kByName;
  };
  if (std::ranges::all_of(layout.tensors(), whole) &&
      std::ranges::any_of(layout.tensors(), by_name)) {
    matrices_of(options.method, layout, options.options);
  }
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    groups.push_back(complete_group(options.groups[g], info, static_cast<int>(g)));
  }
  group_starts.resize(groups.size(), 0);
  const Protocol protocol = method->protocol({.voters = size});
  check_nodes(size, protocol.hierarchical);
  PRIDE_CHECK(std::isfinite(options.clip_global_norm) && options.clip_global_norm >= 0,
              "optimizer: clip_global_norm = ", options.clip_global_norm,
              ", must be finite and 0 or more");
  PRIDE_CHECK(
      options.clip_global_norm == 0 || protocol.mean_gradient,
      "optimizer: clip_global_norm: ", options.method,
      " never has the mean gradient of all ranks, so it cannot clip it; clip each rank's own "
      "gradient instead (local clipping; `pride train`: --clip-norm)");
  PRIDE_CHECK(options.exchange_threads >= 1 && options.exchange_threads <= kMostExchangeThreads,
              "optimizer: exchange_threads = ", options.exchange_threads, ", must be from 1 to ",
              kMostExchangeThreads);
  buckets = make_buckets(layout, options.bucket_coords, size, protocol.alignment, protocol.cuts);
  PRIDE_CHECK(!options.sum_of_parts || (!options.coordinator && options.virtual_workers == 0),
              "optimizer: sum_of_parts is not supported with a coordinator or virtual workers, "
              "which need the whole model");
  PRIDE_CHECK(!options.before_apply || options.virtual_workers == 0,
              "optimizer: before_apply is not supported with virtual workers");
  PRIDE_CHECK(!options.sum_of_parts || options.non_finite != NonFinitePolicy::kSkip ||
                  (period_of(*method) == 1 && protocol.delay == 0),
              "optimizer: sum_of_parts with non_finite = skip is not supported with ",
              options.method,
              ": a step without exchange cannot report a non-finite gradient to the other parts");
  if (options.virtual_workers > 0) options.overlap = false;
  if (!options.coordinator) return;
  check_coordinator(user_comm);
  options.overlap = false;  // all buckets of a step are one ballot
  central = std::make_unique<Central>(layout, *method, buckets, space, options);
}

void Optimizer::Impl::check_virtual_workers(const Communicator& user_comm) const {
  const int n = options.virtual_workers;
  PRIDE_CHECK(n >= 0 && n <= kMostVirtualWorkers, "optimizer: virtual_workers = ", n,
              ", must be from 0 to ", kMostVirtualWorkers);
  PRIDE_CHECK(n == 0 || user_comm.size() == 1, "optimizer: virtual_workers = ", n,
              " on a communicator of size ", user_comm.size(),
              ", must be 1: one process runs all virtual workers");
  PRIDE_CHECK(options.worker_weights.empty() ||
                  options.worker_weights.size() == static_cast<std::size_t>(n),
              "optimizer: ", options.worker_weights.size(), " worker_weights for ", n,
              " virtual workers");
  PRIDE_CHECK(
      n == 0 || !options.coordinator,
      "optimizer: virtual_workers is not supported with a coordinator: each worker is a process");
}

void Optimizer::Impl::check_coordinator(const Communicator& user_comm) const {
  PRIDE_CHECK(user_comm.size() == 1, "optimizer: with a coordinator the communicator has size ",
              user_comm.size(), ", must be 1");
  PRIDE_CHECK(!options.nodes.known(), "optimizer: nodes are not supported with a coordinator");
  for (const TensorSlot& slot : layout.tensors()) {
    PRIDE_CHECK(slot.to_whole == 0,
                "optimizer: a coordinator's worker needs the whole model, but '", slot.spec.name,
                "' is part of a tensor (first_coord ", *slot.spec.first_coord, ")");
  }
  PRIDE_CHECK(
      options.clip_global_norm == 0,
      "optimizer: clip_global_norm is not supported with a coordinator: its records contain no "
      "norm; clip each worker's own gradient instead (local clipping)");
}

void Optimizer::Impl::check_nodes(int world, bool hierarchical) const {
  const Nodes& nodes = options.nodes;
  PRIDE_CHECK(!nodes.known() || nodes.world() == world, "optimizer: the nodes have ", nodes.world(),
              " ranks in all, the communicator has ", world);
  PRIDE_CHECK(!nodes.known() || hierarchical, "optimizer: nodes: ", options.method,
              " has no hierarchical route; methods that have it: ",
              methods_with([](const Protocol& p) { return p.hierarchical; }));
}

// Returns the vote weights of all ranks.
std::vector<std::int64_t> Optimizer::Impl::check_ranks_agree(Communicator& user_comm) {
  Digest method_options, hyper, nodes;
  for (int r = 0; r < options.nodes.world(); ++r) {
    nodes.number(static_cast<std::uint64_t>(options.nodes.node_of(r)));
  }
  for (const auto& [name, value] : options.options) method_options.text(name).text(value);
  for (const GroupValues& g : groups) {
    for (const double v : {g.lr, g.beta1, g.beta2, g.eps, g.weight_decay}) {
      hyper.number(std::bit_cast<std::uint64_t>(v));
    }
  }
  // every rank orthogonalises the same mean: products of a device may differ in the last bits
  const bool same_products = info.bits_up >= 32 && method->matrix_operations() > 0;
  return check_agreement(
      user_comm, layout,
      {{"method", Digest().text(options.method).value()},
       {"method options", method_options.value()},
       {"hyper-parameters", hyper.value()},
       {"seed", options.seed},
       {"bucket size", options.bucket_coords},
       {"list of nodes", nodes.value()},
       {"exchange threads",
        options.overlap ? static_cast<std::uint64_t>(options.exchange_threads) : 1},
       {"global-norm clipping", std::bit_cast<std::uint64_t>(options.clip_global_norm)},
       {"policy for non-finite gradients", static_cast<std::uint64_t>(options.non_finite)},
       {"place of its matrix products (0: the host, 1: a device)",
        same_products && options.device ? 1U : 0U}},
      options.vote_weight);
}

// This optimizer with more tensors and groups. Collective.
std::unique_ptr<Optimizer::Impl> Optimizer::Impl::with(std::vector<TensorSpec> tensors,
                                                       std::vector<ParamGroup> more) {
  std::vector<TensorSpec> specs;
  for (const TensorSlot& slot : layout.tensors()) specs.push_back(slot.spec);
  std::ranges::move(tensors, std::back_inserter(specs));
  std::optional<Layout> grown;
  agree(Call::kAdd, [&] {
    PRIDE_CHECK(
        !central,
        "optimizer: add() is not supported with a coordinator: its run has the tensors that it ",
        "began with");
    if (steps_done > 0) method->check_can_grow();
    grown.emplace(std::move(specs));
    return std::vector<Setting>{};
  });
  OptimizerOptions wanted = options;
  wanted.groups.clear();
  for (const GroupValues& values : groups) wanted.groups.push_back(settings_of(values, info));
  std::ranges::move(more, std::back_inserter(wanted.groups));

  auto next = std::make_unique<Impl>(caller, std::move(*grown), std::move(wanted));
  for (int i = 0; i < n_workers(); ++i) next->table(i).take(table(i), layout.tensors().size());
  next->parameters->take(*parameters);
  next->steps_done = steps_done;
  next->gradient_factor = gradient_factor;
  next->next_scale = next_scale;
  next->frozen = frozen;
  if (!frozen.empty()) next->frozen.resize(next->layout.tensors().size(), 0);
  std::ranges::fill(next->group_starts, steps_done);
  std::ranges::copy(group_starts, next->group_starts.begin());
  move_server_state(buckets, *next);
  return next;
}

// Runs the body, which only checks. Compares over all ranks whether it threw InvalidArgument, then
// what it returned: all continue, or all throw. Collective.
void Optimizer::Impl::agree(Call call, const std::function<std::vector<Setting>()>& body) {
  std::exception_ptr unusable;
  std::vector<Setting> settings;
  try {
    settings = body();
  } catch (const InvalidArgument&) {
    unusable = std::current_exception();
  }
  check_accepted(*comms.front(), call, unusable != nullptr);
  if (unusable) std::rethrow_exception(unusable);
  check_agreement(*comms.front(), layout, settings);
}

void Optimizer::Impl::check_parameters() {
  PRIDE_CHECK(!central,
              "optimizer: call broadcast() before the first step and after load(): it joins the ",
              "coordinator's run");
  Communicator& comm = *comms.front();
  const View common = method->begin(parameters->view());
  for (int i = 1; i < n_workers(); ++i) workers->method(i).begin(parameters->view());
  std::string ranks;
  if (comm.size() > 1) {
    ranks = ranks_that_differ(gather_calls(comm, Call::kFirstStep, hash_of(layout, common)), 1, 0);
  }
  params_checked = ranks.empty();
  PRIDE_CHECK(ranks.empty(), "optimizer: the parameters of rank(s) ", ranks,
              " and of rank 0 differ before step ", steps_done + 1,
              "; Optimizer::broadcast() gives all ranks those of rank 0");
}

}  // namespace pride
