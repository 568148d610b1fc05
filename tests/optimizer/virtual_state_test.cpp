// States of virtual workers equal those of ranks: each loads the other's. Masters, added tensors,
// and state that exists once. The oracle is a run of ranks on threads.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/bf16.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "pride/virtual_workers.h"
#include "virtual_run.h"

namespace pride::virtual_state_test {
namespace {

using testing::kTensors;
using testing::train_ranks;
using testing::train_virtual;
using testing::Training;
using testing::WorldResult;

constexpr int kSteps = 3;  // before the kill, and after it
const Layout kLayout(kTensors);

Training run_of(const std::string& method, int world) {
  Training run{.world = world, .steps = kSteps};
  testing::set_method(run.options, method);
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
  run.options.bucket_coords = 1000;
  run.unused = testing::unused;
  return run;
}

class VirtualState : public ::testing::TestWithParam<std::string> {};

TEST_P(VirtualState, GoesOnAsVirtualWorkersOrAsRanks) {
  const Training run = run_of(GetParam(), 3);
  Training other_buckets = run;
  other_buckets.options.bucket_coords = 64;
  const WorldResult of_ranks = train_ranks(kLayout, run), of_workers = train_virtual(kLayout, run);
  expect_same(of_workers, of_ranks, "before the kill");
  const WorldResult expected = train_ranks(kLayout, run, of_ranks);
  expect_same(train_virtual(kLayout, run, of_ranks), expected, "virtual workers after ranks");
  expect_same(train_ranks(kLayout, run, of_workers), expected, "ranks after virtual workers");
  const WorldResult moved = train_ranks(kLayout, other_buckets, of_ranks);
  expect_same(train_virtual(kLayout, other_buckets, of_workers), moved, "with other buckets");
  EXPECT_TRUE(testing::same_bits(moved.common, expected.common));
}

TEST_P(VirtualState, GoesOnWithAnotherNumber) {
  const Training five = run_of(GetParam(), 5), pair = run_of(GetParam(), 2);
  const WorldResult two = train_virtual(kLayout, pair);
  expect_same(train_virtual(kLayout, five, two), train_ranks(kLayout, five, two), "five after two");
}

std::vector<std::string> all_runs() {
  std::vector<std::string> runs = testing::method_variants();
  runs.insert(runs.end(), {"onebit-adam:freeze_steps=2", "local-ef:h=2", "lion-cub:feedback=yes"});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(All, VirtualState, ::testing::ValuesIn(all_runs()),
                         [](const auto& info) { return testing::test_name(info.param); });

// --- Masters of narrow parameters. ---------------------------------------------------------------

using Narrow = std::vector<std::vector<BFloat16>>;

template <typename View, typename Tensors>
std::vector<View> views_of(Tensors& tensors) {
  std::vector<View> views;
  for (auto& t : tensors) views.emplace_back(t.data(), t.size(), DType::kBFloat16);
  return views;
}

Narrow narrow(const std::function<float(std::size_t, std::size_t)>& value) {
  Narrow tensors;
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    std::vector<float> wide(kLayout.tensors()[t].n);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = value(t, i);
    to_bf16(wide, tensors.emplace_back(wide.size()));
  }
  return tensors;
}

Narrow gradients(int rank, std::int64_t step) {
  return narrow([&](std::size_t t, std::size_t i) { return testing::gradient(rank, step, t, i); });
}

// Each worker has a gradient factor of its own, as local clipping has.
float factor_of(int worker) { return 1 / (1 + static_cast<float>(worker)); }

std::string bits_of(const Narrow& x) {
  std::string bits;
  for (const auto& t : x) {
    const auto bytes = std::as_bytes(std::span(t));
    bits.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return bits;
}

TEST(VirtualMasters, AreThoseOfRanks) {
  for (const std::string method : {"dlion-vote", "adamw", "signsgd-ef", "local-vote:h=2"}) {
    Training run = run_of(method, 3);
    Narrow x = narrow(testing::initial), of_rank_0;
    std::vector<StateDict> states(3);
    VirtualWorkers all(kLayout, run.options, {3});
    const auto tensors = views_of<Tensor>(x);
    for (std::int64_t step = 0; step < 4; ++step) {
      for (int i = 0; i < 3; ++i) {
        all.to_worker(i, tensors);
        const Narrow g = gradients(i, step);
        all.set_gradient_factor(factor_of(i));
        all.hand_over(i, tensors, views_of<ConstTensor>(g));
      }
      all.step(tensors);
    }
    run_world(3, [&](Communicator& comm) {
      Narrow mine = narrow(testing::initial);
      const auto own = views_of<Tensor>(mine);
      Optimizer optimizer(comm, kLayout, run.options);
      optimizer.set_gradient_factor(factor_of(comm.rank()));
      for (std::int64_t step = 0; step < 4; ++step) {
        const Narrow g = gradients(comm.rank(), step);
        optimizer.step(own, views_of<ConstTensor>(g));
      }
      optimizer.to_common(own);
      states[static_cast<std::size_t>(comm.rank())] = optimizer.save();
      if (comm.rank() == 0) of_rank_0 = mine;
    });
    EXPECT_EQ(bits_of(x), bits_of(of_rank_0)) << method;
    ASSERT_TRUE(states[2].tensors.contains("master/w1"));
    for (int i = 0; i < 3; ++i) {
      testing::expect_same(all.save(i), states[static_cast<std::size_t>(i)],
                           concat(method, ", worker ", i));
    }
  }
}

// --- Tensors that are added; what is held once. --------------------------------------------------

TEST(VirtualWorkersAdd, GivesTheBitsOfRanks) {
  const std::vector<TensorSpec> first(kTensors.begin(), kTensors.begin() + 3);
  const std::vector<TensorSpec> more(kTensors.begin() + 3, kTensors.end());
  const auto gradients_of = [](const Layout& layout, int rank, std::int64_t step) {
    FlatBuffer g(layout.flat_size());
    testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
      return testing::gradient(rank, step, t, i);
    });
    return g;
  };
  for (const std::string method : {"dlion-vote", "signsgd-ef", "diloco"}) {
    Training run = run_of(method, 3);
    FlatBuffer x(kLayout.flat_size()), y(kLayout.flat_size());
    testing::fill(kLayout, x, testing::initial);
    testing::fill(kLayout, y, testing::initial);
    const auto part = [](FlatBuffer& all, const Layout& layout) {
      return all.span().first(layout.flat_size());
    };
    run_world(3, [&](Communicator& comm) {
      FlatBuffer mine(kLayout.flat_size());
      testing::fill(kLayout, mine, testing::initial);
      Optimizer optimizer(comm, Layout(first), run.options);
      for (std::int64_t step = 0; step < 4; ++step) {
        if (step == 2) optimizer.add(more);
        const FlatBuffer g = gradients_of(optimizer.layout(), comm.rank(), step);
        optimizer.step(part(mine, optimizer.layout()), g.span());
      }
      if (comm.rank() == 0) std::ranges::copy(mine.span(), y.span().begin());
    });
    VirtualWorkers all(Layout(first), run.options, {3});
    for (std::int64_t step = 0; step < 4; ++step) {
      if (step == 2) all.add(more);
      for (int i = 0; i < 3; ++i) {
        const FlatBuffer g = gradients_of(all.layout(), i, step);
        all.hand_over(i, part(x, all.layout()), g.span());
      }
      all.step(part(x, all.layout()));
    }
    EXPECT_EQ(param_hash(kLayout, x.span()), param_hash(kLayout, y.span())) << method;
  }
}

TEST(VirtualWorkersState, HoldsOnceWhatAllShare) {
  const std::size_t n = kLayout.flat_size();
  const auto floats = [&](const std::string& method) {
    return VirtualWorkers(kLayout, {.method = method}, {8}).memory().state / sizeof(float);
  };
  EXPECT_EQ(floats("adamw"), 2 * n);             // moments of the mean
  EXPECT_EQ(floats("dlion-vote"), 8 * n);        // each worker's momentum
  EXPECT_EQ(floats("diloco"), (2 + 8 * 3) * n);  // common, outer m; drift and two moments each
}

}  // namespace
}  // namespace pride::virtual_state_test
