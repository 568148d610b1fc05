// dgc and graddrop, real exchange included, against the scalar oracle: bit for bit; and that
// graddrop loses nothing.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/sparse_ref.h, sorting and loops over ranks without frames.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "pride/error.h"
#include "pride/registry.h"
#include "reference/sparse_ref.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::sparse_test {
namespace {

using reference::Hyper;
using reference::SparseOracle;
using reference::SparseRule;
using testing::Training;

const std::vector<TensorSpec> kTensors = {{"embedding", {40, 16}},
                                          {"weight", {33, 7}},
                                          {"bias", {33}, 1},
                                          {"scale", {}, 1},
                                          {"head", {130, 5}}};

// Rank 1 never has "bias"; no rank has "scale" at step 1; "head" is missing here and there.
bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 2 && rank == 1) || (tensor == 3 && step == 1) ||
         (tensor == 4 && (rank + step) % 3 == 2);
}

using Options = std::map<std::string, std::string>;

struct Case {
  std::string method;
  Options options;
  SparseRule rule;
};

const Case kCases[] = {
    {"dgc", {}, {.dgc = true}},
    {"dgc", {{"nesterov", "yes"}, {"ratio", "0.3"}}, {.dgc = true, .ratio = 0.3, .nesterov = true}},
    {"dgc", {{"masking", "no"}, {"ratio", "1"}}, {.dgc = true, .ratio = 1, .masking = false}},
    {"graddrop", {}, {}},
    {"graddrop", {{"ratio", "0.01"}}, {.ratio = 0.01}},
};

TEST(SparseMethods, AgreeWithTheOracleBitForBit) {
  const Layout layout(kTensors);
  for (const Case& c : kCases) {
    for (const int world : {1, 2, 3, 4, 5, 8}) {
      Training run{.world = world, .steps = 6};
      run.options.method = c.method;
      run.options.options = c.options;
      run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}, {.lr = 0.003, .weight_decay = 0.0}};
      run.options.bucket_coords = 256;
      run.unused = unused;
      const auto ranks = testing::train(layout, run);
      for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
        const bool group1 = layout.tensors()[t].spec.group == 1;
        const Hyper hyper{.lr = group1 ? 0.003 : 0.01, .weight_decay = group1 ? 0.0 : 0.1};
        const SparseOracle oracle(c.rule, world, testing::initial_of(layout, t), hyper);
        ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "");
      }
    }
  }
}

// One threshold for all tensors is that of one tensor which holds them all, so the oracle takes
// them as one. The small tensor's gradients are the larger ones: it sends more than its share.
TEST(GradientDropping, GlobalThresholdIsThatOfAllTensorsTogether) {
  const std::vector<std::size_t> sizes = {1000, 10};
  const Layout layout({{"large", {1000}}, {"small", {10}}});
  const auto grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
    return testing::gradient(rank, step, t, i) * (t == 1 ? 4.0f : 1.0f);
  };
  const auto together = [&](auto&& value) {
    std::vector<float> all;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      for (std::size_t i = 0; i < sizes[t]; ++i) all.push_back(value(t, i));
    }
    return all;
  };
  for (const int world : {1, 3}) {
    Training run{.world = world, .steps = 6};
    run.options.method = "graddrop";
    run.options.options = {{"threshold", "global"}, {"ratio", "0.02"}};
    run.options.groups = {{.lr = 0.01}};
    run.options.bucket_coords = 256;
    run.grad = grad;
    SparseOracle oracle({.ratio = 0.02}, world, together(testing::initial), {.lr = 0.01});
    for (std::int64_t step = 0; step < run.steps; ++step) {
      std::vector<std::vector<float>> grads;
      for (int r = 0; r < world; ++r) {
        grads.push_back(together([&](auto t, auto i) { return grad(r, step, t, i); }));
      }
      oracle.step(grads, std::vector<bool>(grads.size(), false));
    }
    for (const auto& rank : testing::train(layout, run)) {
      const auto got =
          together([&](auto t, auto i) { return rank.params[layout.tensors()[t].offset + i]; });
      ASSERT_EQ(got, oracle.x()) << "N=" << world;
    }
    // by a threshold of its own a rank would have sent one of these entries a step
    std::size_t moved = 0;
    for (std::size_t i = 1000; i < 1010; ++i)
      moved += oracle.x()[i] != testing::initial(1, i - 1000);
    EXPECT_GT(moved, 6u) << "N=" << world;
  }
}

// Gradients that are small integers, so that every sum is exact: a rank's accumulated gradients
// equal its sent entries plus its residual, to the last bit, a dropped step included.
float whole_gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t i) {
  return std::round(8 * testing::gradient(rank, step, tensor, i));
}

TEST(GradientDropping, LosesNothing) {
  const std::size_t n = 1000;
  const Layout layout({{"w", {static_cast<std::int64_t>(n)}}});
  for (const std::string threshold : {"tensor", "global"}) {
    const int world = 4, steps = 50, bad_step = 7;
    std::vector<double> taken(n), held(n), sent(n);
    std::mutex mutex;
    run_world(world, [&](Communicator& comm) {
      Optimizer optimizer(comm, layout,
                          {.method = "graddrop",
                           .options = {{"threshold", threshold}},
                           .groups = {{.lr = 1.0}},
                           .non_finite = NonFinitePolicy::kSkip,
                           .bucket_coords = 256});
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      std::vector<double> own(n);
      for (std::int64_t step = 0; step < steps; ++step) {
        const bool bad = step == bad_step && comm.rank() == 2;
        for (std::size_t i = 0; i < n; ++i) {
          g.span()[i] = whole_gradient(comm.rank(), step, 0, i);
          if (!bad) own[i] += g.span()[i];
        }
        if (bad) g.span()[3] = std::numeric_limits<float>::infinity();
        ASSERT_EQ(optimizer.step(x.span(), g.span()).skipped, step == bad_step);
      }
      const auto v = optimizer.save().tensors.at("v/w").values;
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < n; ++i) {
        taken[i] += own[i];
        held[i] += v[i];
        // x began at zero, and lr is 1: it has moved by minus the mean of the sent entries
        if (comm.rank() == 0) sent[i] = -static_cast<double>(world) * x.span()[i];
      }
    });
    for (std::size_t i = 0; i < n; ++i)
      ASSERT_EQ(sent[i] + held[i], taken[i]) << "coordinate " << i;
    EXPECT_NE(std::count(sent.begin(), sent.end(), 0.0), static_cast<long>(n));
  }
}

TEST(DeepGradientCompression, ShareFallsDuringTheWarmUp) {
  const std::int64_t n = 10'000;
  const Layout layout({{"w", {n}}});
  Training run{.world = 2, .steps = 12};
  run.options.method = "dgc";
  run.options.options = {{"warmup_steps", "10"}, {"ratio", "0.01"}};
  const auto reports = testing::train(layout, run)[0].reports;
  for (std::size_t s = 1; s < 11; ++s) EXPECT_LT(reports[s].bytes_sent, reports[s - 1].bytes_sent);
  EXPECT_EQ(reports[10].bytes_sent, reports[11].bytes_sent);
  // first 2,500 and at last 100 entries, of 4 bytes and their indices
  EXPECT_NEAR(static_cast<double>(reports[0].bytes_sent), 2500 * 4.0 + 2500 * 4 / 8.0, 400);
  EXPECT_NEAR(static_cast<double>(reports[11].bytes_sent), 64 + 8 + 100 * (4 + 8.6 / 8), 30);
}

TEST(DeepGradientCompression, ClipsEachRanksGradientToItsPart) {
  const Layout layout({{"a", {3}}, {"b", {4}}});
  const int world = 4;
  run_world(world, [&](Communicator& comm) {
    Optimizer optimizer(
        comm, layout,
        {.method = "dgc", .options = {{"clip", "2"}, {"ratio", "1"}}, .groups = {{.lr = 1.0}}});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    g.span()[0] = 3;
    g.span()[64] = 4;  // 2-norm 5, and the limit is 2 / sqrt(4)
    optimizer.step(x.span(), g.span());
    EXPECT_FLOAT_EQ(x.span()[0], -3.0f / 5);
    EXPECT_FLOAT_EQ(x.span()[64], -4.0f / 5);
  });
}

// Finite gradients whose residual overflows are an error like any other Inf, not a broken frame.
TEST(SparseMethods, ReportAResidualThatOverflows) {
  const Layout layout({{"a", {64}}, {"b", {100}}});
  for (const char* method : {"dgc", "graddrop"}) {
    run_world(2, [&](Communicator& comm) {
      Optimizer optimizer(comm, layout, {.method = method, .options = {{"ratio", "0.01"}}});
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      const auto error = texts::error_of<NonFiniteGradient>([&] {
        for (int step = 0; step < 3; ++step) {
          for (std::size_t i = 64; i < 164; ++i) g.span()[i] = comm.rank() == 1 ? 2e38f : 0.0f;
          optimizer.step(x.span(), g.span());
        }
      });
      EXPECT_NE(error.find("'b' on rank 1"), std::string::npos) << method << ": " << error;
    });
  }
}

TEST(SparseMethods, RefuseOptionsThatMakeNoSense) {
  const Layout layout({{"w", {10}}});
  for (const Options& options :
       {Options{{"ratio", "0"}}, Options{{"ratio", "1.5"}}, Options{{"ratio", "x"}},
        Options{{"ratio", ""}}, Options{{"ratio", "nan"}}, Options{{"masking", "maybe"}},
        Options{{"warmup_steps", "-1"}}, Options{{"warmup_steps", "2.5"}},
        Options{{"warmup_steps", "1e3"}}, Options{{"clip", "-1"}}}) {
    run_world(1, [&](Communicator& comm) {
      EXPECT_THROW(Optimizer(comm, layout, {.method = "dgc", .options = options}), InvalidArgument)
          << options.begin()->first << '=' << options.begin()->second;
    });
  }
}

}  // namespace
}  // namespace pride::sparse_test
