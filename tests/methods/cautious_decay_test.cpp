// Option cautious_decay, arXiv:2510.12402: x = x - lr wd x - change where the change is 0 or has
// the sign of x, else x = x - change.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/training.h"

namespace pride::cautious_decay_test {
namespace {

using testing::kTensors;

constexpr std::int64_t kSteps = 4;
constexpr int kWorld = 3;

bool has_option(const std::string& method) {
  return complete_options(method, {}).contains("cautious_decay");
}

// Parameters before and after the last step, the only one with weight decay.
struct Ends {
  std::vector<float> before, after;
};

Ends ends_of(const Layout& layout, OptimizerOptions options, double decay) {
  std::vector<Ends> ends(kWorld);
  options.groups = {{.lr = 0.01}};
  run_world(kWorld, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, options);
    FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
    testing::fill(layout, params, testing::initial);
    Ends& own = ends[static_cast<std::size_t>(comm.rank())];
    for (std::int64_t step = 0; step < kSteps; ++step) {
      testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
        return testing::gradient(comm.rank(), step, t, i);
      });
      bool unused[5];
      for (std::size_t t = 0; t < std::size(unused); ++t) {
        unused[t] = testing::unused(comm.rank(), step, t);
      }
      if (step == kSteps - 1) optimizer.set_group({.weight_decay = decay}, 0);
      own.before.assign(params.span().begin(), params.span().end());
      optimizer.step(params.span(), grads.span(), unused);
    }
    own.after.assign(params.span().begin(), params.span().end());
  });
  for (const Ends& rank : ends) EXPECT_EQ(rank.after, ends[0].after);
  return ends[0];
}

class CautiousDecay : public ::testing::TestWithParam<std::string> {};

TEST_P(CautiousDecay, DecaysWhereTheStepHasTheSignOfTheParameter) {
  const Layout layout(kTensors);
  OptimizerOptions options;
  testing::set_method(options, GetParam());
  const Ends none = ends_of(layout, options, 0), always = ends_of(layout, options, 5);
  options.options["cautious_decay"] = "yes";
  const Ends cautious = ends_of(layout, options, 5);
  ASSERT_EQ(cautious.before, none.before);
  ASSERT_EQ(ends_of(layout, options, 0).after, none.after);
  std::size_t n_same = 0, n_opposite = 0, n_still = 0;
  for (const TensorSlot& slot : layout.tensors()) {
    for (std::size_t i = slot.offset; i < slot.offset + slot.n; ++i) {
      const float x = none.before[i], change = x - none.after[i];
      const bool away = (x > 0 && change < 0) || (x < 0 && change > 0);
      (change == 0 ? n_still : away ? n_opposite : n_same) += x == 0 ? 0 : 1;
      ASSERT_EQ(cautious.after[i], (away ? none : always).after[i])
          << slot.spec.name << "[" << i - slot.offset << "]: x " << x << ", change " << change;
    }
  }
  EXPECT_GT(n_same, 0u);
  EXPECT_GT(n_opposite, 0u);
  EXPECT_GT(n_still, 0u) << "the last tensor has no gradient";
}

std::vector<std::string> all_runs() {
  std::vector<std::string> runs;
  for (const std::string& method : method_names()) {
    if (has_option(method)) runs.push_back(method);
  }
  runs.insert(runs.end(), {"dlion-vote:tie=zero", "dlion-avg:counts=planes", "adamw:dense=bf16",
                           "onebit-adam:freeze_steps=2", "sgdm:nesterov=yes"});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(All, CautiousDecay, ::testing::ValuesIn(all_runs()),
                         [](const auto& info) { return testing::test_name(info.param); });

TEST(CautiousDecayOption, IsOfMethodsWhoseStepsMoveEveryCoordinate) {
  for (const std::string& method : method_names()) {
    const bool some = method == "turn-muon" || method == "dgc" || method == "graddrop";
    EXPECT_EQ(has_option(method), !some && !local_rule_of(method, {}).has_value()) << method;
  }
  EXPECT_TRUE(method_info("lion", 1, {{"cautious_decay", "yes"}}).cautious_decay);
  EXPECT_FALSE(method_info("lion", 1).cautious_decay);
  EXPECT_THROW(method_info("lion", 1, {{"cautious_decay", "true"}}), InvalidArgument);
}

}  // namespace
}  // namespace pride::cautious_decay_test
