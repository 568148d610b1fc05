// Means of gradients for optimizers that are not pride's. Oracle: a step of sgdm without momentum,
// rate 1, from 0, whose parameters are the negative mean; methods_ref.h has that of sgdm.
// SPDX-License-Identifier: Apache-2.0
#include "pride/gradient_mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "pride/optimizer.h"
#include "support/test_device.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::gradient_mean_test {
namespace {

const char* const kForms[] = {"ordered", "native", "bf16", "int8", "int4", "int2"};

std::vector<float> gradient_of(int rank, std::size_t n) {
  std::vector<float> g(n);
  for (std::size_t i = 0; i < n; ++i) g[i] = testing::gradient(rank, 3, 0, i);
  return g;
}

// The mean by an optimizer, of gradients in float32.
std::vector<float> by_sgd(Communicator& comm, const std::string& dense, std::size_t n) {
  const Layout layout({{"w", {static_cast<std::int64_t>(n)}}});
  Optimizer optimizer(comm, layout,
                      {.method = "sgdm",
                       .options = {{"dense", dense}},
                       .groups = {{.lr = 1, .beta1 = 0, .weight_decay = 0}}});
  FlatBuffer x(layout.flat_size()), g(layout.flat_size());
  std::ranges::copy(gradient_of(comm.rank(), n), g.data());
  optimizer.step(x.span(), g.span());
  std::vector<float> mean(n);
  for (std::size_t i = 0; i < n; ++i) mean[i] = 0 - x.data()[i];
  return mean;
}

TEST(GradientMean, HasTheBitsOfTheMeanOfSgd) {
  for (const int world : {1, 2, 3, 5}) {
    for (const std::string dense : kForms) {
      for (const std::size_t n : {1UL, 64UL, 1000UL, 5000UL}) {
        run_world(world, [&](Communicator& comm) {
          const auto expected = by_sgd(comm, dense, n);
          GradientMean mean(comm, {.dense = dense});
          for (int call = 0; call < 2; ++call) {
            std::vector<float> g = gradient_of(comm.rank(), n);
            ASSERT_TRUE(mean.run(std::span(g)));
            ASSERT_EQ(g, expected) << dense << " N=" << world << " n=" << n;
          }
        });
      }
    }
  }
}

TEST(GradientMean, IsRoundedToTheTypeOfTheValues) {
  run_world(3, [&](Communicator& comm) {
    GradientMean mean(comm, {.dense = "int8"});
    std::vector<float> g = gradient_of(comm.rank(), 300);
    std::vector<BFloat16> narrow(g.size());
    to_bf16(g, narrow);
    to_float(narrow, g);
    std::vector<Float16> half(g.size());
    std::vector<float> halved = g;
    to_float16(halved, half);
    to_float(half, halved);
    ASSERT_TRUE(mean.run(std::span(g)) && mean.run(std::span(narrow)));
    ASSERT_TRUE(mean.run(std::span(halved)) && mean.run(std::span(half)));
    std::vector<BFloat16> expected(g.size());
    to_bf16(g, expected);
    EXPECT_EQ(narrow, expected);
    std::vector<Float16> expected_half(g.size());
    to_float16(halved, expected_half);
    EXPECT_EQ(half, expected_half);
  });
}

// Tensors of one call have scales of their own: a small one beside a large one is not lost.
TEST(GradientMean, OfSeveralTensorsIsThatOfEach) {
  const std::size_t sizes[] = {40, 1, 700, 64, 3};
  for (const std::string dense : kForms) {
    run_world(3, [&](Communicator& comm) {
      GradientMean together(comm, {.dense = dense}), alone(comm, {.dense = dense});
      std::vector<float> all, expected;
      for (std::size_t t = 0; t < std::size(sizes); ++t) {
        std::vector<float> g = gradient_of(comm.rank() + static_cast<int>(10 * t), sizes[t]);
        for (float& x : g) x *= std::pow(100.0F, static_cast<float>(t % 3));
        all.insert(all.end(), g.begin(), g.end());
        ASSERT_TRUE(alone.run(std::span(g)));
        expected.insert(expected.end(), g.begin(), g.end());
      }
      ASSERT_TRUE(together.run(std::span(all), sizes));
      EXPECT_EQ(all, expected) << dense;
    });
  }
}

TEST(GradientMean, IsNanEverywhereIfAValueIsNotFinite) {
  for (const std::string dense : kForms) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      run_world(3, [&](Communicator& comm) {
        GradientMean mean(comm, {.dense = dense});
        std::vector<float> g = gradient_of(comm.rank(), 700);
        if (comm.rank() == 1) g[650] = bad;
        EXPECT_FALSE(mean.run(std::span(g)));
        EXPECT_TRUE(std::ranges::all_of(g, [](float x) { return std::isnan(x); })) << dense;
        g = gradient_of(comm.rank(), 700);
        EXPECT_TRUE(mean.run(std::span(g)));
        EXPECT_EQ(g, by_sgd(comm, dense, 700)) << dense;
      });
    }
  }
}

TEST(GradientMean, SendsTheBytesOfTheMethod) {
  const Layout layout({{"w", {5000}}});
  for (const std::string dense : {"ordered", "bf16", "int8", "int4", "int2"}) {
    run_world(4, [&](Communicator& comm) {
      GradientMean mean(comm, {.dense = dense}), other(comm, {.dense = dense});
      std::vector<float> g = gradient_of(comm.rank(), 5000);
      mean.run(std::span(g));
      other.run(std::span(g));  // its bytes are its own
      const Cost cost = method_cost(
          "sgdm", layout, {.options = {{"dense", dense}}, .world = 4, .rank = comm.rank()});
      EXPECT_EQ(mean.bytes_sent(), cost.bytes()) << dense;
    });
  }
}

TEST(GradientMean, OnADeviceHasTheBitsOfTheHost) {
  for (const std::string dense : {"ordered", "native", "int8", "int4", "int2"}) {
    for (const std::size_t n : {1UL, 1000UL, 5000UL}) {
      run_world(3, [&](Communicator& comm) {
        const auto device = std::make_shared<testing::TestDevice>();
        GradientMean on_host(comm, {.dense = dense}), on_device(comm, {dense, device});
        for (int call = 0; call < 3; ++call) {
          std::vector<float> g = gradient_of(comm.rank(), n);
          if (call == 1 && comm.rank() == 2) g[n / 2] = std::numeric_limits<float>::infinity();
          std::vector<BFloat16> narrow(n);
          to_bf16(g, narrow);
          void* const there = device->allocate(4 * n);
          const auto compare = [&](auto& values, DType dtype) {
            device->put(there, std::as_bytes(std::span(values)));
            const bool finite = on_device.run({there, n, dtype});
            EXPECT_EQ(on_host.run(std::span(values)), finite);
            auto got = values;
            device->get(there, std::as_writable_bytes(std::span(got)));
            EXPECT_EQ(std::memcmp(got.data(), values.data(), std::span(got).size_bytes()), 0)
                << dense << " n=" << n << " call " << call;
          };
          compare(g, DType::kFloat32);
          compare(narrow, DType::kBFloat16);
          std::vector<Float16> half(n);
          to_float16(gradient_of(comm.rank(), n), half);
          compare(half, DType::kFloat16);
        }
      });
    }
  }
}

TEST(GradientMean, NamesTheCallInWhichRanksDiffer) {
  const auto texts = testing::errors_of<CommError>(2, [](Communicator& comm) {
    GradientMean mean(comm, {});
    std::vector<float> g(100, 1.0F), more(1000, 1.0F);
    mean.run(std::span(g));
    mean.run(comm.rank() == 0 ? std::span(g) : std::span(more));
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("gradient mean, call 2"), std::string::npos) << text;
  }
}

TEST(GradientMean, RefusesOptions) {
  run_world(1, [](Communicator& comm) {
    texts::expect_error<InvalidArgument>([&] { GradientMean(comm, {.dense = "int3"}); },
                                         {"gradient mean: option dense = 'int3'", "int4"});
    texts::expect_error<InvalidArgument>(
        [&] {
          GradientMean(comm, {"bf16", std::make_shared<testing::TestDevice>()});
        },
        {"gradient mean: option dense = bf16", "on a device"});
  });
}

}  // namespace
}  // namespace pride::gradient_mean_test
