// The checks of a front door that need no other rank, and what takes over when tensors are added.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "device/device_space.h"
#include "methods/registry.h"
#include "methods/vote_weights.h"
#include "optimizer/replica_impl.h"
#include "pride/cpu.h"
#include "pride/error.h"

namespace pride {

Replica::Impl::Impl(Layout the_layout, OptimizerOptions the_options, int the_world, int here)
    : layout(std::move(the_layout)),
      options(std::move(the_options)),
      world(the_world),
      own_space(options.device ? std::make_unique<DeviceSpace>(options.device)
                               : Space::make_host()),
      space(*own_space),
      sections(layout, options, world) {
  active_isa();  // an unusable PRIDE_ISA is reported here; kernels cannot
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const auto index = static_cast<int>(g);
    groups.push_back(complete_group(options.groups[g], sections.of_group(index).info, index));
  }
  group_starts.resize(groups.size(), 0);
  PRIDE_CHECK(std::isfinite(options.clip_global_norm) && options.clip_global_norm >= 0,
              "optimizer: clip_global_norm = ", options.clip_global_norm,
              ", must be finite and 0 or more");
  for (int i = 0; i < here; ++i) workers.push_back(sections.make_steps(options, world, space));
  for (Steps& steps : workers) {
    for (std::size_t s = 0; s < sections.size(); ++s) {
      StateTable& table = steps[s].method->state();
      if (&steps == &workers.front()) {
        check_method(steps[s]);
        table.allocate(sections[s].layout.flat_size(), space);
      } else {
        table.allocate_beside(workers.front()[s].method->state());
      }
    }
  }
  parameters = std::make_unique<PlacedParameters>(layout, space);
}

void Replica::Impl::check_method(const SectionStep& step) const {
  const Nodes& nodes = options.nodes;
  const std::string& name = step.section->method;
  PRIDE_CHECK(!nodes.known() || nodes.world() == world, "optimizer: the nodes have ", nodes.world(),
              " ranks in all, the communicator has ", world);
  PRIDE_CHECK(!nodes.known() || step.method->protocol({.voters = world}).hierarchical,
              "optimizer: nodes: ", name, " has no hierarchical route; methods that have it: ",
              methods_with([](const Protocol& p) { return p.hierarchical; }));
  PRIDE_CHECK(
      options.clip_global_norm == 0 || step.method->mean_gradient() != nullptr,
      "optimizer: clip_global_norm: ", name,
      " never has the mean gradient of all ranks, so it cannot clip it; clip each rank's own "
      "gradient instead (local clipping; `pride train`: --clip-norm)");
}

// Votes of ranks with these weights.
std::vector<int> Replica::Impl::votes_of(std::span<const std::int64_t> given) const {
  std::vector<int> votes;  // equal for all methods that have weights
  for (const SectionStep& step : workers.front()) {
    votes = vote_weights(step.section->method, step.method->protocol({.voters = world}),
                         options.nodes, given);
  }
  return votes;
}

std::pair<Layout, OptimizerOptions> Replica::Impl::grown(std::vector<TensorSpec> tensors,
                                                         std::vector<ParamGroup> more) {
  std::vector<TensorSpec> specs;
  for (const TensorSlot& slot : layout.tensors()) specs.push_back(slot.spec);
  std::ranges::move(tensors, std::back_inserter(specs));
  std::optional<Layout> all;
  agree(Call::kAdd, [&] {
    all.emplace(std::move(specs));
    return Settings{};
  });
  OptimizerOptions wanted = options;
  wanted.groups.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    wanted.groups.push_back(settings(static_cast<int>(g)));
  }
  std::ranges::move(more, std::back_inserter(wanted.groups));
  return {std::move(*all), std::move(wanted)};
}

// Takes the state of an Impl whose tensors and groups are the first of this one's, and so are its
// sections. Throws InvalidArgument, and has taken nothing, if a method cannot have new tensors.
void Replica::Impl::take_over(Impl& before) {
  for (std::size_t s = 0; s < sections.size() && before.steps_done > 0; ++s) {
    const std::size_t old = s < before.sections.size() ? before.sections[s].tensors.size() : 0;
    const std::string& why_not = workers.front()[s].method->facts().cannot_grow;
    PRIDE_CHECK(sections[s].tensors.size() == old || why_not.empty(), why_not);
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    for (std::size_t s = 0; s < before.sections.size(); ++s) {
      workers[i][s].method->state().take(before.workers[i][s].method->state(),
                                         before.sections[s].tensors.size());
    }
  }
  parameters->take(*before.parameters);
  steps_done = before.steps_done;
  gradient_factor = before.gradient_factor;
  frozen = before.frozen;
  if (!frozen.empty()) frozen.resize(layout.tensors().size(), 0);
  std::ranges::fill(group_starts, steps_done);
  std::ranges::copy(before.group_starts, group_starts.begin());
  for (std::size_t s = 0; s < before.sections.size(); ++s) {
    if (has_server_state(s)) move_server_state(s, before.sections[s].buckets);
  }
}

}  // namespace pride
