// The parameter groups of a run, and their values in a step.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "pride/train/model.h"
#include "pride/train/plan.h"
#include "train/settings/groups.h"
#include "train/settings/varying.h"

namespace pride::train {
namespace {

// True if --vary changes this value of group g. Tensors without decay stay without: groups_of()
// puts them behind those of --method that decay.
bool is_varied(const Varying& varying, const ParamGroup& group, std::size_t g) {
  return group.method.empty() && (g == 0 || varying.member != &ParamGroup::weight_decay);
}

}  // namespace

std::vector<ParamGroup> groups_of(const TrainOptions& o) {
  std::vector<ParamGroup> groups;
  const auto add = [&](ParamGroup group) {
    groups.push_back(group);
    if (o.decay_all) return;
    group.weight_decay = 0.0;
    groups.push_back(std::move(group));
  };
  add({.lr = o.lr,
       .beta1 = o.beta1,
       .beta2 = o.beta2,
       .eps = o.eps,
       .weight_decay = o.weight_decay,
       .momentum = o.momentum});
  for (GroupChoice& choice : parse_groups(o.groups)) add(std::move(choice.group));
  return groups;
}

Layout layout_of(const Model& model, const TrainOptions& options) {
  std::vector<TensorSpec> specs;
  for (const ModelParameter& p : model.parameters()) {
    specs.push_back({.name = p.name, .shape = p.tensor.sizes().vec()});
  }
  const auto entries = entries_of_tensors(options.groups, Layout(specs));
  for (std::size_t t = 0; t < specs.size(); ++t) {
    const bool decay = options.decay_all || model.parameters()[t].decay;
    specs[t].group = entries[t] * (options.decay_all ? 1 : 2) + (decay ? 0 : 1);
  }
  return Layout(std::move(specs));
}

std::vector<ParamGroup> TrainPlan::groups_at(std::int64_t step) const {
  const double factor = schedule.factor(step);
  const auto varying = parse_varying(options.vary);
  std::vector<ParamGroup> groups;
  for (std::size_t g = 0; g < optimizer.groups.size(); ++g) {
    const ParamGroup& peak = optimizer.groups[g];
    ParamGroup& now = groups.emplace_back(ParamGroup{.lr = *peak.lr * factor});
    for (const Varying& each : varying) {
      if (is_varied(each, peak, g)) now.*each.member = each.at(step, schedule.total_steps);
    }
  }
  return groups;
}

}  // namespace pride::train
