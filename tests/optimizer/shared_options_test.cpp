// Options of all methods: clipping of the mean gradient, gradients in bfloat16, groups.
// SPDX-License-Identifier: Apache-2.0
// Oracle of clipping: sums in double over all ranks; of bfloat16: the same numbers as float32.
#include <gtest/gtest.h>

#include <cmath>

#include "pride/error.h"
#include "pride/registry.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::shared_options_test {
namespace {

using testing::Training;

const std::vector<TensorSpec> kTensors = {{"a", {50, 20}}, {"b", {33}}, {"c", {700}}};

bool has_mean_gradient(const std::string& method) {
  return method == "adamw" || method == "sgdm" || method == "lion" || method == "muon";
}

Training sgdm_run(double clip) {
  Training run{.world = 4, .steps = 3};
  run.options.method = "sgdm";
  run.options.groups = {{.lr = 0.5, .beta1 = 0.0}};
  run.options.clip_global_norm = clip;
  return run;
}

// The mean gradient of a step, without padding.
std::vector<double> mean_gradient(std::int64_t step) {
  std::vector<double> mean;
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    const std::size_t n = Layout(kTensors).tensors()[t].n;
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int r = 0; r < 4; ++r) sum += static_cast<double>(testing::gradient(r, step, t, i));
      mean.push_back(sum / 4);
    }
  }
  return mean;
}

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double v : values) squares += v * v;
  return std::sqrt(squares);
}

TEST(GlobalNormClipping, ScalesTheMeanGradientDown) {
  const Layout layout(kTensors);
  const double clip = 10;
  const auto ranks = testing::train(layout, sgdm_run(clip));
  std::vector<double> moved(layout.n_coords());
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto mean = mean_gradient(step);
    ASSERT_GT(norm(mean), clip);
    for (std::size_t i = 0; i < mean.size(); ++i) moved[i] += 0.5 * mean[i] * clip / norm(mean);
    const auto reported = ranks[0].reports[static_cast<std::size_t>(step)].grad_norm;
    ASSERT_TRUE(reported.has_value());
    EXPECT_NEAR(*reported, norm(mean), 1e-5 * norm(mean));
  }
  std::size_t at = 0;
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    for (std::size_t i = 0; i < slot.n; ++i, ++at) {
      const double expected = static_cast<double>(testing::initial(t, i)) - moved[at];
      ASSERT_NEAR(ranks[3].params[slot.offset + i], expected, 1e-4) << slot.spec.name << ' ' << i;
    }
  }
}

TEST(GlobalNormClipping, LeavesSmallerGradientsAlone) {
  const Layout layout(kTensors);
  EXPECT_EQ(testing::train(layout, sgdm_run(1e6))[0].hash,
            testing::train(layout, sgdm_run(0))[0].hash);
  EXPECT_NE(testing::train(layout, sgdm_run(10))[0].hash,
            testing::train(layout, sgdm_run(0))[0].hash);
  EXPECT_FALSE(testing::train(layout, sgdm_run(0))[0].reports[0].grad_norm.has_value());
}

TEST(GlobalNormClipping, DoesNotDependOnBucketsOrOverlap) {
  const Layout layout(kTensors);
  const auto expected = testing::train(layout, sgdm_run(10));
  for (const std::size_t coords : {64, 200, 100'000}) {
    for (const bool overlap : {false, true}) {
      Training run = sgdm_run(10);
      run.options.bucket_coords = coords;
      run.options.overlap = overlap;
      for (const auto& rank : testing::train(layout, run)) {
        EXPECT_EQ(rank.hash, expected[0].hash) << coords << ' ' << overlap;
        EXPECT_EQ(rank.reports[2].grad_norm, expected[0].reports[2].grad_norm);
      }
    }
  }
}

TEST(GlobalNormClipping, IsRefusedWhereNobodyHasTheMeanGradient) {
  const Layout layout(kTensors);
  for (const std::string& method : method_names()) {
    run_world(2, [&](Communicator& comm) {
      const auto error = texts::error_of<InvalidArgument>(
          [&] { Optimizer optimizer(comm, layout, {.method = method, .clip_global_norm = 1}); });
      if (has_mean_gradient(method)) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_NE(error.find(method + " never has the mean gradient"), std::string::npos) << error;
      }
    });
  }
  run_world(1, [&](Communicator& comm) {
    for (const double clip : {-1.0, std::nan(""), double{INFINITY}}) {
      EXPECT_THROW(Optimizer(comm, layout, {.method = "sgdm", .clip_global_norm = clip}),
                   InvalidArgument);
    }
  });
}

TEST(GlobalNormClipping, RanksMustAgree) {
  const Layout layout(kTensors);
  run_world(3, [&](Communicator& comm) {
    texts::expect_error<InvalidArgument>(
        [&] {
          Optimizer optimizer(comm, layout,
                              {.method = "lion", .clip_global_norm = comm.rank() == 2 ? 1.0 : 2.0});
        },
        {"global-norm clipping"});
  });
}

// Params after three steps with gradients that bfloat16 holds exactly, given in either type.
std::vector<float> params_after(const std::string& method, bool narrow, bool in_parts,
                                bool overlap) {
  const Layout layout(kTensors);
  std::vector<float> out;
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {.method = method, .bucket_coords = 256, .overlap = overlap});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    std::vector<BFloat16> g16(g.size());
    testing::fill(layout, x, testing::initial);
    for (std::int64_t step = 0; step < 3; ++step) {
      testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
        return testing::gradient(comm.rank(), step, t, i);
      });
      to_bf16(g.span(), g16);
      to_float(g16, g.span());
      const bool missing[] = {false, step == 1, false};
      if (!in_parts) {
        narrow ? optimizer.step(x.span(), g16, missing)
               : optimizer.step(x.span(), g.span(), missing);
        continue;
      }
      narrow ? optimizer.begin_step(x.span(), g16) : optimizer.begin_step(x.span(), g.span());
      for (std::size_t t = 3; t-- > 0;) {
        missing[t] ? optimizer.gradient_ready(t, ConstTensor()) : optimizer.gradient_ready(t);
      }
      optimizer.finish_step();
    }
    if (comm.rank() == 0) out.assign(x.span().begin(), x.span().end());
  });
  return out;
}

TEST(Bf16Gradients, GiveTheBitsOfTheSameNumbersInFloat32) {
  for (const std::string& method : method_names()) {
    const auto expected = params_after(method, false, false, false);
    EXPECT_EQ(params_after(method, true, false, false), expected) << method;
    EXPECT_EQ(params_after(method, true, true, true), expected) << method << ", overlap";
  }
}

TEST(Bf16Gradients, NaNIsReportedAndSizesAreChecked) {
  const Layout layout(kTensors);
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size());
    std::vector<BFloat16> g(layout.flat_size());
    EXPECT_THROW(optimizer.step(x.span(), std::span(g).first(64)), InvalidArgument);
    if (comm.rank() == 1) g[layout.tensors()[1].offset] = BFloat16{0x7FC0};
    texts::expect_error<NonFiniteGradient>([&] { optimizer.step(x.span(), g); }, {"'b' on rank 1"});
  });
}

// Weight decay is a group's own in every method: without gradients it is all that happens.
TEST(Groups, DecayOnlyWhereTheyAreToldTo) {
  const Layout layout({{"decays", {100}, 0}, {"stays", {100}, 1}});
  for (const std::string& method : method_names()) {
    Training run{.world = 2, .steps = 2};
    testing::set_method(run.options, method);
    run.options.groups = {{.lr = 0.1, .weight_decay = 0.5}, {.lr = 0.1, .weight_decay = 0.0}};
    run.unused = [](int, std::int64_t, std::size_t) { return true; };
    const auto ranks = testing::train(layout, run);
    const auto decay = static_cast<float>(1 - 0.1 * 0.5);
    for (std::size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(ranks[1].params[i], testing::initial(0, i) * decay * decay) << method;
      EXPECT_EQ(ranks[1].params[128 + i], testing::initial(1, i)) << method;
    }
  }
}

}  // namespace
}  // namespace pride::shared_options_test
