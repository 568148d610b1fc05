// The checks of a front door that need no other rank, and what takes over when tensors are added.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "device/device_space.h"
#include "methods/registry.h"
#include "optimizer/replica_impl.h"
#include "pride/cpu.h"
#include "pride/error.h"

namespace pride {

Replica::Impl::Impl(Layout the_layout, OptimizerOptions the_options, int the_world)
    : layout(std::move(the_layout)),
      options(std::move(the_options)),
      world(the_world),
      own_space(options.device ? std::make_unique<DeviceSpace>(options.device)
                               : Space::make_host()),
      space(*own_space) {
  active_isa();  // an unusable PRIDE_ISA is reported here; kernels cannot
  info = method_info(options.method, world, options.options);
  PRIDE_CHECK(world <= info.max_world, "optimizer: ", options.method, " on ", world,
              " ranks, supports at most ", info.max_world);
  PRIDE_CHECK(static_cast<std::size_t>(layout.n_groups()) <= options.groups.size(),
              "optimizer: the layout has ", layout.n_groups(), " groups, the options ",
              options.groups.size());
  PRIDE_CHECK(
      !options.device || info.on_device, "optimizer: ", options.method,
      " is not supported on a device; use tensors in host memory, or one of these methods: ",
      methods_on_devices());
  options.options = complete_options(options.method, options.options);
  method = make_method(options.method, {layout, world, options.options, options.nodes, space,
                                        options.orthogonalise});
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
  const Protocol protocol = method->protocol({.voters = world});
  check_nodes(protocol.hierarchical);
  PRIDE_CHECK(std::isfinite(options.clip_global_norm) && options.clip_global_norm >= 0,
              "optimizer: clip_global_norm = ", options.clip_global_norm,
              ", must be finite and 0 or more");
  PRIDE_CHECK(
      options.clip_global_norm == 0 || method->mean_gradient() != nullptr,
      "optimizer: clip_global_norm: ", options.method,
      " never has the mean gradient of all ranks, so it cannot clip it; clip each rank's own "
      "gradient instead (local clipping; `pride train`: --clip-norm)");
  buckets = make_buckets(layout, options.bucket_coords, world, protocol.alignment, protocol.cuts);
  method->state().allocate(layout.flat_size(), space);
  tables = {&method->state()};
  parameters = std::make_unique<PlacedParameters>(layout, space);
}

void Replica::Impl::check_nodes(bool hierarchical) const {
  const Nodes& nodes = options.nodes;
  PRIDE_CHECK(!nodes.known() || nodes.world() == world, "optimizer: the nodes have ", nodes.world(),
              " ranks in all, the communicator has ", world);
  PRIDE_CHECK(!nodes.known() || hierarchical, "optimizer: nodes: ", options.method,
              " has no hierarchical route; methods that have it: ",
              methods_with([](const Protocol& p) { return p.hierarchical; }));
}

std::pair<Layout, OptimizerOptions> Replica::Impl::grown(std::vector<TensorSpec> tensors,
                                                         std::vector<ParamGroup> more) {
  std::vector<TensorSpec> specs;
  for (const TensorSlot& slot : layout.tensors()) specs.push_back(slot.spec);
  std::ranges::move(tensors, std::back_inserter(specs));
  std::optional<Layout> all;
  agree(Call::kAdd, [&] {
    const std::string& why_not = method->facts().cannot_grow;
    PRIDE_CHECK(steps_done == 0 || why_not.empty(), why_not);
    all.emplace(std::move(specs));
    return Settings{};
  });
  OptimizerOptions wanted = options;
  wanted.groups.clear();
  for (const GroupValues& values : groups) wanted.groups.push_back(settings_of(values, info));
  std::ranges::move(more, std::back_inserter(wanted.groups));
  return {std::move(*all), std::move(wanted)};
}

// Takes the state of an Impl whose tensors and groups are the first of this one's.
void Replica::Impl::take_over(Impl& before) {
  for (std::size_t i = 0; i < tables.size(); ++i) {
    tables[i]->take(*before.tables[i], before.layout.tensors().size());
  }
  parameters->take(*before.parameters);
  steps_done = before.steps_done;
  gradient_factor = before.gradient_factor;
  frozen = before.frozen;
  if (!frozen.empty()) frozen.resize(layout.tensors().size(), 0);
  std::ranges::fill(group_starts, steps_done);
  std::ranges::copy(before.group_starts, group_starts.begin());
  if (method->state().has(StateKind::kServer)) move_server_state(before.buckets);
}

}  // namespace pride
