// OptimizerOptions::before_apply. Oracle: the same training without it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "pride/virtual_workers.h"
#include "support/training.h"

namespace pride::before_apply_test {
namespace {

constexpr int kWorld = 3, kSteps = 5;
const std::vector<TensorSpec> kTensors = {{"a", {100}}, {"b", {37, 10}}, {"c", {70}}};

struct Variant {
  const char* method;
  std::map<std::string, std::string> options = {};
  bool skip = false;
};

class BeforeApply : public ::testing::TestWithParam<bool> {
 protected:
  // The parameters of rank 0 after kSteps steps. `check`: called with the parameters before a step
  // and at the call, nothing if there was none.
  template <typename Check>
  FlatBuffer train(const Variant& v, bool with, const Check& check) const {
    const Layout layout(kTensors);
    FlatBuffer result(layout.flat_size());
    run_world(kWorld, [&](Communicator& comm) {
      OptimizerOptions options{.method = v.method, .options = v.options, .bucket_coords = 64};
      if (v.skip) options.non_finite = NonFinitePolicy::kSkip;
      options.overlap = GetParam();
      FlatBuffer x(layout.flat_size()), g(layout.flat_size()), before(layout.flat_size());
      int calls = 0;
      if (with) {
        options.before_apply = [&] {
          ++calls;
          check(before, x);
        };
      }
      Optimizer optimizer(comm, layout, options);
      testing::fill(layout, x, testing::initial);
      for (int step = 0; step < kSteps; ++step) {
        testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
          return testing::gradient(comm.rank(), step, t, i);
        });
        std::ranges::copy(x.span(), before.span().begin());
        optimizer.step(x.span(), g.span());
        EXPECT_EQ(calls, with ? step + 1 : 0) << v.method;
      }
      optimizer.to_common(x.span());
      if (comm.rank() == 0) std::ranges::copy(x.span(), result.span().begin());
    });
    return result;
  }
};

TEST_P(BeforeApply, IsCalledOncePerStepBeforeAnythingChanges) {
  const std::vector<Variant> variants = {
      {"dlion-vote"}, {"dlion-vote", {}, true},     {"lion-cub"},
      {"adamw"},      {"local-vote", {{"h", "2"}}}, {"diloco", {{"h", "2"}, {"delay", "1"}}}};
  for (const Variant& v : variants) {
    const bool local = v.options.contains("h");  // those change parameters in encode
    const FlatBuffer expected = train(v, false, [](const auto&, const auto&) {});
    const FlatBuffer x = train(v, true, [&](const FlatBuffer& before, const FlatBuffer& now) {
      EXPECT_TRUE(local || std::ranges::equal(before.span(), now.span())) << v.method;
    });
    EXPECT_TRUE(std::ranges::equal(x.span(), expected.span())) << v.method;
  }
}

TEST_P(BeforeApply, AnExceptionEndsTheStepAndParametersAreThoseBefore) {
  const Layout layout(kTensors);
  run_world(kWorld, [&](Communicator& comm) {
    OptimizerOptions options{.bucket_coords = 64, .overlap = GetParam()};
    bool refuses = false;
    options.before_apply = [&] {
      if (refuses) throw CommError("the ranks do not agree");
    };
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size()), before(layout.flat_size());
    testing::fill(layout, x, testing::initial);
    testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), 0, t, i);
    });
    optimizer.step(x.span(), g.span());
    std::ranges::copy(x.span(), before.span().begin());
    refuses = true;
    EXPECT_THROW(optimizer.step(x.span(), g.span()), CommError);
    EXPECT_TRUE(std::ranges::equal(x.span(), before.span())) << "rank " << comm.rank();
    EXPECT_EQ(optimizer.save().scalars.at("step"), "1");
    EXPECT_THROW(optimizer.step(x.span(), g.span()), InvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(Overlap, BeforeApply, ::testing::Bool());

TEST(BeforeApply, IsRefusedWithVirtualWorkers) {
  EXPECT_THROW(VirtualWorkers(Layout(kTensors), {.before_apply = [] {}}, {2}), InvalidArgument);
}

}  // namespace
}  // namespace pride::before_apply_test
