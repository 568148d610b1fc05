// The optimizer's errors: bad arguments, gradients that are not finite.
// SPDX-License-Identifier: Apache-2.0
#include "pride/optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/training.h"

namespace pride::optimizer_test {
namespace {

using testing::Training;

void expect_all_contain(const std::vector<std::string>& texts, const std::string& part) {
  for (std::size_t r = 0; r < texts.size(); ++r) {
    EXPECT_NE(texts[r].find(part), std::string::npos) << "rank " << r << ": '" << texts[r] << "'";
  }
}

TEST(Optimizer, RefusesBadArguments) {
  run_world(1, [](Communicator& comm) {
    const Layout layout({{"a", {10}, 1}});
    EXPECT_THROW(Optimizer(comm, layout, {}), InvalidArgument);  // group 1 is not there
    const Layout good({{"a", {10}}});
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const ParamGroup& bad :
         {ParamGroup{.lr = -1}, ParamGroup{.lr = nan}, ParamGroup{.beta1 = 1},
          ParamGroup{.beta2 = -0.1}, ParamGroup{.eps = -1}, ParamGroup{.weight_decay = nan},
          ParamGroup{.lr = 1e39}, ParamGroup{.eps = 1e39},
          ParamGroup{.lr = 1e20, .weight_decay = 1e20}}) {
      EXPECT_THROW(Optimizer(comm, good, {.groups = {bad}}), InvalidArgument);
    }
    for (const double eps : {0.0, 1e-50}) {
      EXPECT_THROW(Optimizer(comm, good, {.method = "adamw", .groups = {{.eps = eps}}}),
                   InvalidArgument);
    }
    EXPECT_THROW(Optimizer(comm, good, {.method = "dlion"}), InvalidArgument);
    EXPECT_THROW(Optimizer(comm, good, {.method = "dlion-vote", .options = {{"tie", "up"}}}),
                 InvalidArgument);
    EXPECT_THROW(Optimizer(comm, good, {.method = "lion", .options = {{"tie", "zero"}}}),
                 InvalidArgument);

    Optimizer optimizer(comm, good, {});
    FlatBuffer x(64), short_x(10);
    EXPECT_THROW(optimizer.step(short_x.span(), x.span()), InvalidArgument);
    EXPECT_THROW(optimizer.set_group({.lr = nan}), InvalidArgument);
    EXPECT_THROW(optimizer.set_group({.lr = 1e39}), InvalidArgument);
    EXPECT_THROW(optimizer.set_group({.lr = 1}, 1), InvalidArgument);
    EXPECT_THROW(optimizer.finish_step(), InvalidArgument);
    EXPECT_THROW(optimizer.gradient_ready(0), InvalidArgument);
    optimizer.begin_step(x.span(), x.span());
    EXPECT_THROW(optimizer.begin_step(x.span(), x.span()), InvalidArgument);
    optimizer.gradient_ready(0);
    EXPECT_THROW(optimizer.gradient_ready(0), InvalidArgument);
    EXPECT_THROW(optimizer.gradient_ready(1), InvalidArgument);
    EXPECT_EQ(optimizer.finish_step().step, 0);
    EXPECT_EQ(optimizer.steps_done(), 1);
  });
}

TEST(Optimizer, NamesTheRankWithAnotherLearningRate) {
  std::vector<std::string> texts = testing::errors_of<CommError>(3, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout({{"a", {1000}}}), {});
    FlatBuffer x(1024), g(1024);
    if (comm.rank() == 1) optimizer.set_group({.lr = 0.5});
    optimizer.step(x.span(), g.span());
  });
  expect_all_contain(texts, "step scalars");
}

class NonFinite : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(NonFinite, RaisesTheSameErrorOnAllRanksAndRefusesFurtherSteps) {
  const auto [method, overlap] = GetParam();
  const Layout layout({{"a", {500}}, {"b", {500}}, {"c", {500}}});
  const auto texts = testing::errors_of<NonFiniteGradient>(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout,
                        {.method = method,
                         .options = testing::in_every_step(method),
                         .bucket_coords = 128,
                         .overlap = overlap});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    optimizer.step(x.span(), g.span());
    if (comm.rank() == 2)
      g.span()[layout.tensors()[1].offset + 450] = std::numeric_limits<float>::infinity();
    const StateDict before = optimizer.save();
    try {
      optimizer.step(x.span(), g.span());
    } catch (const NonFiniteGradient&) {
      EXPECT_THROW(optimizer.step(x.span(), g.span()), InvalidArgument);
      EXPECT_THROW(optimizer.save(), InvalidArgument);
      optimizer.load(before);
      FlatBuffer good(layout.flat_size());
      EXPECT_EQ(optimizer.step(x.span(), good.span()).step, 1);
      throw;
    }
  });
  expect_all_contain(texts, "step 2: NaN or Inf in the gradient of 'b' on rank 2");
}

TEST_P(NonFinite, SkipDropsTheStepOnAllRanks) {
  const auto [method, overlap] = GetParam();
  const Layout layout({{"a", {500}}, {"b", {500}}, {"c", {500}}});
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout,
                        {.method = method,
                         .options = testing::in_every_step(method),
                         .non_finite = NonFinitePolicy::kSkip,
                         .bucket_coords = 128,
                         .overlap = overlap});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    testing::fill(layout, x, testing::initial);
    const std::uint64_t before = param_hash(layout, x.span());
    if (comm.rank() == 0) g.span()[3] = std::numeric_limits<float>::quiet_NaN();
    const StepReport report = optimizer.step(x.span(), g.span());
    EXPECT_TRUE(report.skipped);
    EXPECT_NE(report.skip_reason.find("'a' on rank 0"), std::string::npos) << report.skip_reason;
    EXPECT_EQ(param_hash(layout, x.span()), before);
    g.span()[3] = 1;
    EXPECT_FALSE(optimizer.step(x.span(), g.span()).skipped);
    EXPECT_NE(param_hash(layout, x.span()), before);
  });
}

INSTANTIATE_TEST_SUITE_P(All, NonFinite,
                         ::testing::Combine(::testing::ValuesIn(method_names()), ::testing::Bool()),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           for (char& ch : name) ch = ch == '-' ? '_' : ch;
                           return name + (std::get<1>(info.param) ? "_overlap" : "");
                         });

// Gradients in memory of their own, in float32 and bfloat16, against the same in one buffer.
TEST(GradientsApart, GiveTheSameBitsByEveryMethod) {
  const Layout layout(testing::kTensors);
  for (const std::string& method : testing::method_variants()) {
    testing::Training run{.world = 3, .steps = 3, .unused = testing::unused};
    testing::set_method(run.options, method);
    run.options.bucket_coords = 256;
    const std::uint64_t expected = testing::train(layout, run)[0].hash;
    for (const bool narrow : {false, true}) {
      run_world(run.world, [&](Communicator& comm) {
        OptimizerOptions options = run.options;
        options.overlap = narrow;
        Optimizer optimizer(comm, layout, options);
        FlatBuffer x(layout.flat_size());
        testing::fill(layout, x, testing::initial);
        for (std::int64_t step = 0; step < run.steps; ++step) {
          std::vector<std::vector<float>> grads;
          std::vector<std::vector<BFloat16>> rounded;
          optimizer.begin_step(x.span());
          for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
            auto& g = grads.emplace_back(layout.tensors()[t].n);
            for (std::size_t i = 0; i < g.size(); ++i) g[i] = run.grad(comm.rank(), step, t, i);
            rounded.emplace_back(g.size());
            to_bf16(g, rounded.back());
          }
          for (std::size_t t = layout.tensors().size(); t-- > 0;) {
            if (testing::unused(comm.rank(), step, t)) {
              optimizer.gradient_ready(t, ConstTensor());
            } else if (narrow) {
              optimizer.gradient_ready(t, std::span<const BFloat16>(rounded[t]));
            } else {
              optimizer.gradient_ready(t, std::span<const float>(grads[t]));
            }
          }
          optimizer.finish_step();
        }
        optimizer.to_common(x.span());
        const std::uint64_t hash = param_hash(layout, x.span());
        if (!narrow) {
          EXPECT_EQ(hash, expected) << method;
        }
        std::vector<std::uint64_t> all(3);
        comm.all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(all)));
        EXPECT_EQ(all[0], all[2]) << method;
      });
    }
  }
}

TEST(GradientsApart, AreRefusedWhereTheyDoNotFit) {
  run_world(1, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout({{"a", {5}}, {"b", {3}}}), {});
    FlatBuffer x(128), g(128);
    const std::vector<float> five(5, 1.0f);
    optimizer.begin_step(x.span(), g.span());
    EXPECT_THROW(optimizer.gradient_ready(0, five), InvalidArgument);
    optimizer.finish_step();
    optimizer.begin_step(x.span());
    EXPECT_THROW(optimizer.gradient_ready(1, five), InvalidArgument);
    EXPECT_THROW(optimizer.gradient_ready(0), InvalidArgument);
    optimizer.gradient_ready(0, five);
    EXPECT_THROW(optimizer.gradient_ready(0, five), InvalidArgument);
    optimizer.finish_step();  // "b" is unused
    EXPECT_NE(x.span()[4], 0.0f);
    EXPECT_EQ(x.span()[64], 0.0f);
  });
}

// A sum of finite gradients may overflow: found by the server of the shard, flagged to all.
TEST(DenseMean, ReportsASumThatOverflows) {
  for (const char* how : {"ordered", "native", "bf16"}) {
    const auto texts = testing::errors_of<NonFiniteGradient>(2, [&](Communicator& comm) {
      Optimizer optimizer(comm, Layout({{"a", {64}}, {"b", {64}}}),
                          {.method = "lion", .options = {{"dense", how}}});
      FlatBuffer x(128), g(128);
      g.span()[70] = 3e38f;
      optimizer.step(x.span(), g.span());
    });
    expect_all_contain(texts, "the sum of the ranks' gradients of 'b' overflows");
  }
}

// The largest float32 that rounds to a finite bfloat16 passes; the next one is not finite, like
// Inf.
TEST(DenseMean, ReportsAGradientThatNoBf16CanHold) {
  const float most = std::bit_cast<float>(0x7F7F7FFFu), more = std::bit_cast<float>(0x7F7F8000u);
  ASSERT_TRUE(std::isfinite(more));
  for (const float value : {most, more}) {
    const auto step = [&](Communicator& comm) {
      Optimizer optimizer(comm, Layout({{"a", {64}}, {"b", {64}}}),
                          {.method = "lion", .options = {{"dense", "bf16"}}});
      FlatBuffer x(128), g(128);
      if (comm.rank() == 1) g.span()[70] = -value;
      optimizer.step(x.span(), g.span());
    };
    if (value == most) {
      run_world(2, step);
    } else {
      expect_all_contain(testing::errors_of<NonFiniteGradient>(2, step),
                         "gradient of 'b' on rank 1");
    }
  }
}

// What is unused is not looked at, and not rounded into anybody's mean.
TEST(DenseMean, InBf16LeavesUnusedGradientsOut) {
  run_world(2, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout({{"a", {64}}, {"b", {64}}}),
                        {.method = "sgdm", .options = {{"dense", "bf16"}}});
    FlatBuffer x(128), g(128);
    const bool unused[] = {comm.rank() == 1, true};
    for (float& value : g.span())
      value = comm.rank() == 0 ? 1.0f : std::numeric_limits<float>::infinity();
    g.span()[70] = 3.4e38f;
    optimizer.step(x.span(), g.span(), unused);
    EXPECT_EQ(x.span()[3], -0.1f * 0.5f) << "the mean divides by N";
    EXPECT_EQ(x.span()[70], 0);
  });
}

TEST(Optimizer, TakesGradientsInAnyOrderAndTreatsTheRestAsUnused) {
  const Layout layout({{"a", {100}}, {"b", {100}}, {"c", {100}}});
  std::vector<std::uint64_t> hashes;
  for (const bool in_parts : {false, true}) {
    run_world(2, [&](Communicator& comm) {
      Optimizer optimizer(comm, layout,
                          {.method = "dlion-vote", .bucket_coords = 64, .overlap = in_parts});
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
        return testing::gradient(comm.rank(), 0, t, i);
      });
      if (in_parts) {
        optimizer.begin_step(x.span(), g.span());
        optimizer.gradient_ready(0);
        optimizer.gradient_ready(2);
        optimizer.finish_step();  // b was never reported
      } else {
        const bool unused[] = {false, true, false};
        optimizer.step(x.span(), g.span(), unused);
      }
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      hashes.push_back(param_hash(layout, x.span()));
    });
  }
  for (const std::uint64_t h : hashes) EXPECT_EQ(h, hashes[0]);
}

TEST(Optimizer, AnEmptyLayoutIsNoWork) {
  run_world(2, [](Communicator& comm) {
    Optimizer optimizer(comm, Layout({}), {});
    EXPECT_EQ(optimizer.step(std::span<float>(), std::span<const float>()).bytes_sent, 0u);
    EXPECT_EQ(optimizer.cost().bytes(), 0u);
  });
}

}  // namespace
}  // namespace pride::optimizer_test
