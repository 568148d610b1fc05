// Construction of an optimizer, and what ranks do between steps: agree, broadcast, add tensors.
// SPDX-License-Identifier: Apache-2.0
#include "pride/optimizer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "optimizer/optimizer_impl.h"
#include "optimizer/resharding.h"
#include "optimizer/run_values.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr int kMostExchangeThreads = 16;

}  // namespace

Optimizer::Optimizer(Communicator& comm, Layout layout, OptimizerOptions options)
    : Replica(Impl::make(comm, std::move(layout), std::move(options))) {}

Optimizer::Impl& Optimizer::impl() const noexcept { return static_cast<Impl&>(*impl_); }

std::unique_ptr<Optimizer::Impl> Optimizer::Impl::make(Communicator& comm, Layout layout,
                                                       OptimizerOptions options) {
  // a rank with unusable settings still calls the collective check, where the others wait for it
  std::unique_ptr<Impl> impl;
  std::exception_ptr unusable;
  try {
    impl = std::make_unique<Impl>(comm, std::move(layout), std::move(options));
  } catch (const InvalidArgument&) {
    unusable = std::current_exception();
  } catch (const OutOfMemory&) {
    unusable = std::current_exception();
  }
  check_accepted(comm, Call::kConstruct, unusable != nullptr);
  if (unusable) std::rethrow_exception(unusable);
  impl->connect();
  return impl;
}

Optimizer::Impl::Impl(Communicator& comm, Layout the_layout, OptimizerOptions the_options)
    : Replica::Impl(std::move(the_layout), std::move(the_options), comm.size()), caller(comm) {
  PRIDE_CHECK(options.exchange_threads >= 1 && options.exchange_threads <= kMostExchangeThreads,
              "optimizer: exchange_threads = ", options.exchange_threads, ", must be from 1 to ",
              kMostExchangeThreads);
  PRIDE_CHECK(!options.model_parallel_sum || options.non_finite != NonFinitePolicy::kSkip ||
                  (sections[0].info.period == 1 &&
                   steps().front().method->protocol({.voters = world}).delay == 0),
              "optimizer: model_parallel_sum with non_finite = skip is not supported with ",
              sections[0].method,
              ": a step without exchange cannot report a non-finite gradient to other "
              "model-parallel ranks");
  buckets_of_tensor.resize(layout.tensors().size());
  tensors_of_bucket.resize(sections.by_bucket().size());
  for (std::size_t b = 0; b < tensors_of_bucket.size(); ++b) {
    const Section& section = sections[sections.by_bucket()[b].section];
    for (const Shard& shard : section.buckets[sections.by_bucket()[b].index].shards) {
      for (const Piece& piece : shard.pieces) {
        auto& list = buckets_of_tensor[section.tensors[piece.tensor]];
        if (!list.empty() && list.back() == b) continue;  // another shard of the same bucket
        list.push_back(b);
        ++tensors_of_bucket[b];
      }
    }
  }
}

void Optimizer::Impl::connect() {
  weights = votes_of(check_ranks_agree());
  const int n_comms = options.overlap ? options.exchange_threads : 1;
  for (int i = 0; i < n_comms; ++i) {
    comms.push_back(caller.duplicate());
    comms.back()->set_timeout(caller.timeout());
  }
  pipeline = std::make_unique<Pipeline>(comms, caller, sections, steps(), options.nodes,
                                        options.overlap, space, options.model_parallel_sum);
  pipeline->before_apply(options.before_apply);
}

// Returns the vote weights of all ranks.
std::vector<std::int64_t> Optimizer::Impl::check_ranks_agree() {
  Digest methods, method_options, hyper, nodes;
  bool same_products = false;  // every rank orthogonalises the same mean: devices' last bits differ
  for (const SectionStep& step : steps()) {
    methods.text(step.section->method);
    for (const auto& [name, value] : step.section->options) method_options.text(name).text(value);
    const Method& method = *step.method;
    same_products =
        same_products || (method.mean_gradient() != nullptr && method.local() == nullptr &&
                          method.facts().matrix_operations > 0);
  }
  Digest of_groups;
  for (const std::size_t section : sections.by_group()) of_groups.number(section);
  for (int r = 0; r < options.nodes.world(); ++r) {
    nodes.number(static_cast<std::uint64_t>(options.nodes.node_of(r)));
  }
  for (const GroupValues& g : groups) {
    for (const double v :
         {g.lr, g.beta1, g.beta2, g.eps, g.weight_decay, g.momentum.value_or(-1)}) {
      hyper.number(std::bit_cast<std::uint64_t>(v));
    }
  }
  return check_agreement(
      caller, layout,
      {{"method", methods.value()},
       {"method options", method_options.value()},
       {"methods and options of groups", of_groups.value()},
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

void Optimizer::Impl::agree(Call call, const std::function<Settings()>& body) {
  std::exception_ptr unusable;
  Settings settings;
  try {
    settings = body();
  } catch (const InvalidArgument&) {
    unusable = std::current_exception();
  }
  check_accepted(*comms.front(), call, unusable != nullptr);
  if (unusable) std::rethrow_exception(unusable);
  if (!settings.empty()) check_agreement(*comms.front(), layout, settings);
}

void Optimizer::Impl::check_parameters() {
  Communicator& comm = *comms.front();
  for_local(steps(), parameters->view(),
            [](LocalParameters& local, View x, std::span<const char>) { local.begin(x); });
  const std::uint64_t hash = common_hash(parameters->view());
  std::string ranks;
  if (comm.size() > 1) {
    ranks = ranks_that_differ(gather_calls(comm, Call::kFirstStep, hash), 1, 0);
  }
  params_checked = ranks.empty();
  PRIDE_CHECK(ranks.empty(), "optimizer: the parameters of rank(s) ", ranks,
              " and of rank 0 differ before step ", steps_done + 1,
              "; Optimizer::broadcast() gives all ranks those of rank 0");
}

void Optimizer::Impl::complete() {
  if (refusal.empty()) guarded([&] { pipeline->complete(); });
}

std::size_t Optimizer::Impl::frame_bytes() const {
  std::size_t bytes = pipeline->wire_bytes() + results.capacity();
  for (const auto* flights : followers) {
    for (const Flight& flight : *flights) bytes += flight.capacity_bytes();
  }
  return bytes;
}

void Optimizer::Impl::move_server_state(std::size_t section, std::span<const Bucket> from) {
  move_to_servers(*comms.front(), from, sections[section].buckets,
                  steps()[section].method->state().buffers(StateKind::kServer));
}

void Optimizer::Impl::broadcast(const Parameters& params) {
  check_idle("broadcast");
  complete();  // until then the communicator is that of an exchange in flight
  agree(Call::kBroadcast, [&] {
    place(params, "broadcast");
    return Settings{};
  });
  Communicator& comm = *comms.front();
  if (comm.size() == 1) return;
  const Communicator::Scope scope(comm, "broadcast of the parameters");
  const View view = parameters->view();
  std::vector<float> room;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    const auto values = view.f32(t, slot.offset, slot.offset + slot.n);
    const bool here = space.is_host() && !values.halved();
    if (!here) on_host(space, values, room);
    const std::span<float> sent = here ? values.span() : std::span(room);
    comm.broadcast(std::as_writable_bytes(sent), 0);
    if (!here) space.write(sent, values);
  }
  publish();
}

void Optimizer::broadcast(const Parameters& params) { impl().broadcast(params); }

void Optimizer::add(std::vector<TensorSpec> tensors, std::vector<ParamGroup> groups) {
  Impl& all = impl();
  all.check_idle("add");
  PRIDE_CHECK(all.refusal.empty(), "optimizer: add() after a step that failed: ", all.refusal);
  PRIDE_CHECK(all.followers.empty(),
              "optimizer: add() to an optimizer with followers: create a new ", "optimizer");
  all.complete();
  auto [layout, options] = all.grown(std::move(tensors), std::move(groups));
  auto next = Impl::make(all.caller, std::move(layout), std::move(options));
  next->next_scale = all.next_scale;
  next->take_over(all);
  impl_ = std::move(next);
}

Traffic Optimizer::finish_exchanges() {
  impl().check_idle("finish_exchanges");
  impl().complete();
  return impl().pipeline->has_delay() ? impl().uncounted() : Traffic{};
}

}  // namespace pride
