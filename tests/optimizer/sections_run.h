// A model whose groups name two methods, in turns; on each rank an optimizer of the model, or of
// the part of one method.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rules/orthogonalise.h"
#include "support/training.h"

namespace pride::sections_test {

inline constexpr int kSteps = 4;
// Sections lie in turns in the model; "c" spans buckets.
inline const std::vector<TensorSpec> kModel = {{"a", {40, 8}, 1}, {"b", {33, 9}, 0},
                                               {"c", {900}, 2},   {"d", {17, 20}, 0},
                                               {"e", {70}, 1},    {"f", {}, 2}};

// Two methods: of groups 0 and 2, and of group 1.
struct Pair {
  ParamGroup first, second;
  Nodes nodes = {};
  int weight = 1;  // of rank 1
};

inline ParamGroup group_of(const std::string& text) {
  OptimizerOptions options;
  testing::set_method(options, text);
  return {.weight_decay = 0.1, .method = options.method, .options = options.options};
}
inline Pair pair(const std::string& first, const std::string& second) {
  return {group_of(first), group_of(second)};
}

inline OptimizerOptions options_of(const Pair& p, Communicator* comm = nullptr) {
  OptimizerOptions options;
  options.groups = {p.first, p.second, p.first};
  options.groups[2].lr = 0.01;
  options.bucket_coords = 128;
  options.seed = 5;
  options.nodes = p.nodes;
  options.vote_weight = comm != nullptr && comm->rank() == 1 ? p.weight : 1;
  return options;
}

inline bool is_second(std::size_t tensor) { return kModel[tensor].group == 1; }

// Tensors of one method, as a part of the model, and their numbers in it.
struct Own {
  std::vector<TensorSpec> specs;
  std::vector<std::size_t> tensors;
};
inline Own own_of(bool second) {
  Own own;
  const Layout model(kModel);
  for (std::size_t t = 0; t < kModel.size(); ++t) {
    if (is_second(t) != second) continue;
    own.specs.push_back(kModel[t]);
    own.specs.back().first_coord = model.tensors()[t].offset;
    own.tensors.push_back(t);
  }
  return own;
}

// The method as that of the whole optimizer, for the part that it has in the model.
inline OptimizerOptions own_options(const OptimizerOptions& all, const ParamGroup& group) {
  OptimizerOptions own = all;
  own.method = group.method;
  own.options = group.options;
  for (ParamGroup& g : own.groups) {
    g.method.clear();
    g.options.clear();
  }
  return own;
}

inline std::unique_ptr<bool[]> flags_of(int rank, int step, std::span<const std::size_t> tensors) {
  auto flags = std::make_unique<bool[]>(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    flags[i] = tensors[i] == 3 && (rank + step) % 3 == 0;
  }
  return flags;
}

inline constexpr std::array<std::size_t, 6> kAllTensors = {0, 1, 2, 3, 4, 5};

template <typename Steps>
void fill(const Layout& layout, FlatBuffer& flat, std::span<const std::size_t> tensors,
          const Steps& value) {
  testing::fill(layout, flat, [&](std::size_t t, std::size_t i) { return value(tensors[t], i); });
}

// One rank's optimizer and parameters, of the model or of the part of a method.
struct Side {
  Side(Communicator& comm, const OptimizerOptions& options)
      : rank(comm.rank()), optimizer(comm, Layout(kModel), options) {
    tensors.assign(kAllTensors.begin(), kAllTensors.end());
    begin();
  }
  Side(Communicator& comm, const OptimizerOptions& all, const ParamGroup& group, bool second)
      : rank(comm.rank()),
        tensors(own_of(second).tensors),
        optimizer(comm, Layout(own_of(second).specs), own_options(all, group)) {
    begin();
  }
  void begin() {
    x = FlatBuffer(optimizer.layout().flat_size());
    g = FlatBuffer(optimizer.layout().flat_size());
    fill(optimizer.layout(), x, tensors, testing::initial);
  }
  StepReport step(int number) {
    const auto gradient = [&](std::size_t t, std::size_t i) {
      return testing::gradient(rank, number, t, i);
    };
    fill(optimizer.layout(), g, tensors, gradient);
    const auto unused = flags_of(rank, number, tensors);
    return optimizer.step(x.span(), g.span(), {unused.get(), tensors.size()});
  }

  int rank;
  std::vector<std::size_t> tensors;
  FlatBuffer x, g;
  Optimizer optimizer;
};

inline std::vector<Pair> pairs() {
  std::vector<Pair> all = {pair("dlion-vote:route=sharded", "adamw"),
                           pair("dlion-vote", "dlion-vote:tie=zero"),
                           pair("dlion-avg", "adamw:dense=bf16"),
                           pair("lion-cub", "adamw:dense=native"),
                           pair("terngrad", "lion-cub:bits=2"),
                           pair("dlion-vote", "adamw:dense=int4"),
                           pair("signsgd-ef", "dgc"),
                           pair("local-vote:h=2", "diloco:h=2"),
                           pair("signum-vote:momentum_dtype=bfloat16", "sgdm")};
  if (rules::has_blas()) {
    all.push_back(pair("dlion-muon", "adamw"));
    all.push_back(pair("muon", "onebit-adam:freeze_steps=2"));
  }
  all.push_back(pair("dlion-vote", "dlion-avg"));
  all.back().weight = 3;
  all.push_back(pair("dlion-vote", "signum-vote"));
  all.back().nodes = Nodes::of_size(4, 2);
  return all;
}

}  // namespace pride::sections_test
