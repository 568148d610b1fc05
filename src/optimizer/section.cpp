// SPDX-License-Identifier: Apache-2.0
#include "optimizer/section.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "methods/registry.h"
#include "pride/error.h"

namespace pride {
namespace {

// These tensors as a layout, in which the optimizer's coordinates key random bits.
Layout layout_of(const Layout& all, std::span<const std::size_t> tensors) {
  std::vector<TensorSpec> specs;
  for (const std::size_t t : tensors) {
    const TensorSlot& slot = all.tensors()[t];
    specs.push_back(slot.spec);
    specs.back().first_coord = slot.offset + slot.to_whole;
  }
  return Layout(std::move(specs));
}

// Method and options of a group, complete.
std::pair<std::string, OptionMap> method_of(const ParamGroup& group, const OptimizerOptions& all,
                                            std::size_t index) {
  PRIDE_CHECK(!group.method.empty() || group.options.empty(), "optimizer: group ", index, ": the ",
              "option ", group.options.begin()->first, " is given without a method");
  const bool own = !group.method.empty();
  const std::string& name = own ? group.method : all.method;
  return {name, complete_options(name, own ? group.options : all.options)};
}

// A word of an option such as not_matrices must name a tensor: of this section, or of another one.
// It may name a tensor of another model-parallel rank, and decides nothing if the caller does.
void check_words(const Section& section) {
  const auto by_name = [](const TensorSlot& slot) {
    return slot.spec.as_matrix == AsMatrix::kByName;
  };
  if (std::ranges::none_of(section.layout.tensors(), by_name)) return;
  std::vector<TensorSpec> specs;
  for (const TensorSlot& slot : section.all->tensors()) {
    if (slot.spec.first_coord) return;
    specs.push_back(slot.spec);
    const auto at = static_cast<std::size_t>(&slot - section.all->tensors().data());
    if (std::ranges::binary_search(section.tensors, at)) continue;
    specs.back().as_matrix = AsMatrix::kNo;  // whatever its own method makes of it
  }
  matrices_of(section.method, Layout(std::move(specs)), section.options);
}

}  // namespace

View Section::view(View of_all, std::vector<ParameterPlace>& room) const {
  if (has_all_tensors()) return of_all;
  room.clear();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const TensorSlot& slot = all->tensors()[tensors[t]];
    room.push_back(
        {of_all.f32(tensors[t], slot.offset, slot.offset + slot.n), layout.tensors()[t].offset});
  }
  return {.flat = {}, .places = room.data(), .memory = of_all.memory};
}

std::vector<char> Section::flags(std::span<const char> of_all) const {
  std::vector<char> own;
  if (of_all.empty()) return own;
  for (const std::size_t t : tensors) own.push_back(of_all[t]);
  return own;
}

NonFinite Section::in_all(NonFinite flag) const {
  if (flag.tensor < tensors.size()) {
    flag.tensor = static_cast<decltype(flag.tensor)>(tensors[flag.tensor]);
  }
  return flag;
}

// --- All sections. -------------------------------------------------------------------------------

Sections::Sections(const Layout& layout, const OptimizerOptions& options, int world)
    : of_tensor_(layout.tensors().size()) {
  PRIDE_CHECK(static_cast<std::size_t>(layout.n_groups()) <= options.groups.size(),
              "optimizer: the layout has ", layout.n_groups(), " groups, the options ",
              options.groups.size());
  std::vector<std::pair<std::string, OptionMap>> rules;  // by section
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    auto rule = method_of(options.groups[g], options, g);
    const auto known = std::ranges::find(rules, rule);
    of_group_.push_back(static_cast<std::size_t>(known - rules.begin()));
    if (known == rules.end()) rules.push_back(std::move(rule));
  }
  std::vector<std::vector<std::size_t>> tensors(rules.size());
  for (std::size_t t = 0; t < of_tensor_.size(); ++t) {
    const auto group = static_cast<std::size_t>(layout.tensors()[t].spec.group);
    auto& own = tensors[of_group_[group]];
    of_tensor_[t] = {of_group_[group], own.size()};
    own.push_back(t);
  }
  for (std::size_t s = 0; s < rules.size(); ++s) {
    auto& [method, given] = rules[s];
    Section section{.method = method,
                    .options = given,
                    .info = method_info(method, world, given),
                    .groups = {},
                    .all = &layout,
                    .tensors = tensors[s],
                    .layout = rules.size() == 1 ? layout : layout_of(layout, tensors[s])};
    for (std::size_t g = 0; g < of_group_.size(); ++g) {
      if (of_group_[g] == s) section.groups.push_back(static_cast<int>(g));
    }
    sections_.push_back(std::move(section));
    check(sections_.back(), options, world);
  }
}

void Sections::check(const Section& section, const OptimizerOptions& options, int world) const {
  const MethodInfo& info = section.info;
  PRIDE_CHECK(world <= info.max_world, "optimizer: ", section.method, " on ", world,
              " ranks, supports at most ", info.max_world);
  PRIDE_CHECK(
      !options.device || info.on_device, "optimizer: ", section.method,
      " is not supported on a device; use tensors in host memory, or one of these methods: ",
      methods_on_devices());
  const MethodInfo& first = sections_.front().info;
  PRIDE_CHECK(info.period == first.period, "optimizer: ", section.method, " exchanges every ",
              info.period, " steps and ", first.name, " every ", first.period,
              ": all groups must have the same period");
  check_words(section);
}

void Sections::cut(std::span<const SectionStep> steps, std::size_t bucket_coords, int world) {
  struct Cut {
    std::size_t first;  // tensor of the optimizer's layout, which backward completes last
    Place place;
  };
  std::vector<Cut> cuts;
  for (std::size_t s = 0; s < sections_.size(); ++s) {
    Section& section = sections_[s];
    const Protocol protocol = steps[s].method->protocol({.voters = world});
    PRIDE_CHECK(sections_.size() == 1 || protocol.delay == 0, "optimizer: ", section.method,
                " with the option delay needs all groups: no group may have another method");
    section.buckets =
        make_buckets(section.layout, bucket_coords, world, protocol.alignment, protocol.cuts);
    for (std::size_t b = 0; b < section.buckets.size(); ++b) {
      std::size_t first = std::numeric_limits<std::size_t>::max();
      for (const Shard& shard : section.buckets[b].shards) {
        for (const Piece& piece : shard.pieces) first = std::min(first, piece.tensor);
      }
      cuts.push_back({section.tensors[first], {s, b}});
    }
  }
  std::ranges::stable_sort(cuts, std::greater(), &Cut::first);
  for (const auto& [first, place] : cuts) {
    sections_[place.section].buckets[place.index].index = static_cast<int>(of_bucket_.size());
    of_bucket_.push_back(place);
  }
}

// --- A worker's steps. ---------------------------------------------------------------------------

std::vector<SectionStep> Sections::make_steps(const OptimizerOptions& options, int world,
                                              Space& space) {
  std::vector<SectionStep> steps;
  for (const Section& section : sections_) {
    const MethodContext ctx{section.layout, world, section.options,
                            options.nodes,  space, options.orthogonalise};
    steps.emplace_back(section, make_method(section.method, ctx), space);
  }
  if (of_bucket_.empty()) cut(steps, options.bucket_coords, world);
  return steps;
}

void SectionStep::take_flag(Flight& flight, std::size_t part) const {
  const auto& flag = flight.wires[part].non_finite;
  if (!flight.non_finite && flag) flight.non_finite = section->in_all(*flag);
}

}  // namespace pride
