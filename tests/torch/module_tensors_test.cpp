// ModuleTensors against torch's own modules and optimizers: where tensors lie, unused parameters,
// tied weights, steps.
// SPDX-License-Identifier: Apache-2.0
// Oracles: torch::optim::AdamW (tolerance below), Lion written out in float (equal to the bit).
#include "pride/torch/module_tensors.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "torch/net.h"

namespace pride {
namespace {

// AdamW of pride and of torch order their roundings differently; steps here are of size 1e-2
constexpr double kAdamTolerance = 2e-6;
constexpr int kSteps = 10;

// The gradient of a tensor as the optimizer reads it; empty: none.
std::vector<float> gradient_of(ModuleTensors& tensors, const std::string& name) {
  const ConstTensor& g = tensors.gradients()[tensors.layout().index_of(name)];
  if (g.data == nullptr) return {};
  const auto* values = static_cast<const float*>(g.data);
  return {values, values + g.n};
}

TEST(ModuleTensors, UsesParametersAndGradientsWhereTheyLie) {
  Net net;
  std::vector<void*> before;
  for (const auto& p : net.parameters()) before.push_back(p.data_ptr());
  ModuleTensors tensors(named(net));
  loss_of(net, 0).backward();
  const auto& slots = tensors.layout().tensors();
  ASSERT_EQ(slots.size(), 6U);
  EXPECT_EQ(slots[0].spec.name, "first.weight");
  EXPECT_EQ(slots[5].spec.name, "last.bias");
  const auto params = tensors.parameters();
  const auto grads = tensors.gradients();
  const auto now = net.parameters();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(params[i].data, before[i]) << slots[i].spec.name;
    EXPECT_EQ(now[i].data_ptr(), before[i]) << slots[i].spec.name;
    EXPECT_EQ(now[i].storage().nbytes(), slots[i].n * sizeof(float)) << slots[i].spec.name;
    const torch::Tensor grad = now[i].grad();
    EXPECT_EQ(grads[i].data, grad.defined() ? grad.data_ptr() : nullptr) << slots[i].spec.name;
  }
}

TEST(ModuleTensors, ParametersWithoutAGradientSinceZeroGradHaveNone) {
  Net net;
  ModuleTensors tensors(named(net));
  loss_of(net, 0).backward();
  EXPECT_FALSE(gradient_of(tensors, "first.weight").empty());
  EXPECT_FALSE(gradient_of(tensors, "last.bias").empty());
  EXPECT_TRUE(gradient_of(tensors, "unused.weight").empty());
  tensors.zero_grad();
  EXPECT_TRUE(gradient_of(tensors, "first.weight").empty());
  EXPECT_FALSE(net.first->weight.grad().defined());
}

TEST(ModuleTensors, TiedWeightsAppearOnceAndSumTheirGradients) {
  torch::Tensor table = torch::ones({4, 3}).set_requires_grad(true);
  ModuleTensors tensors(
      {{.name = "wte.weight", .tensor = table}, {.name = "lm_head.weight", .tensor = table}});
  ASSERT_EQ(tensors.layout().tensors().size(), 1U);
  EXPECT_EQ(tensors.layout().tensors()[0].spec.name, "wte.weight");
  const torch::Tensor row = torch::embedding(table, torch::tensor({1}));
  torch::matmul(row, table.t()).sum().backward();
  // d/dtable of sum_j row . table_j: row to every row, and the sum of the rows to row 1
  EXPECT_EQ(gradient_of(tensors, "wte.weight")[0], 1.0F);
  EXPECT_EQ(gradient_of(tensors, "wte.weight")[3], 5.0F);
}

TEST(ModuleTensors, ReadsGradientsThatSomebodyReplacedOrRemoved) {
  Net net;
  ModuleTensors tensors(named(net));
  loss_of(net, 0).backward();
  net.first->weight.mutable_grad() = torch::full({7, 5}, 2.5F);
  net.last->weight.mutable_grad() = torch::Tensor();
  EXPECT_EQ(gradient_of(tensors, "first.weight"), std::vector<float>(35, 2.5F));
  EXPECT_TRUE(gradient_of(tensors, "last.weight").empty());
  EXPECT_FALSE(net.last->weight.grad().defined());
}

TEST(ModuleTensors, ReadsGradientsInRowMajorOrder) {
  const std::vector<float> expected = {0, 2, 0, 3};
  torch::Tensor p = torch::zeros({2, 2}).set_requires_grad(true);
  ModuleTensors tensors({{.name = "p", .tensor = p}});
  p.mutable_grad() = torch::tensor({{0.0F, 0.0F}, {2.0F, 3.0F}}).t();
  EXPECT_EQ(gradient_of(tensors, "p"), expected);
  p.mutable_grad() = torch::tensor({{0.0F, 2.0F}, {0.0F, 3.0F}}).to_sparse();
  EXPECT_EQ(gradient_of(tensors, "p"), expected);
  p.mutable_grad() = torch::zeros({2, 2}, torch::kDouble);
  EXPECT_THROW(tensors.gradients(), InvalidArgument);
}

TEST(ModuleTensors, LeavesFrozenParametersOut) {
  Net net;
  net.unused->weight.set_requires_grad(false);
  const ModuleTensors tensors(named(net));
  EXPECT_EQ(tensors.layout().tensors().size(), 5U);
  EXPECT_THROW(tensors.layout().index_of("unused.weight"), InvalidArgument);
}

TEST(ModuleTensors, NamesTheParameterItRefuses) {
  const auto refusal = [](torch::Tensor tensor) -> std::string {
    try {
      ModuleTensors({{.name = "odd", .tensor = std::move(tensor)}});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal(torch::ones(3, torch::kDouble)).find("'odd'"), std::string::npos);
  EXPECT_NE(refusal(torch::ones(1).expand(3)).find("'odd'"), std::string::npos);
  EXPECT_NE(refusal(torch::Tensor()).find("'odd' is undefined"), std::string::npos);
  EXPECT_NE(refusal(torch::ones(3).set_requires_grad(true) * 2).find("'odd'"), std::string::npos);
  EXPECT_THROW(ModuleTensors({}), InvalidArgument);
}

TEST(ModuleTensors, StepsLikeTorchAdamWWhenAlone) {
  Net net;
  const auto twin = twin_of(net);
  ModuleTensors tensors(named(net));
  torch::optim::AdamW oracle(twin->parameters(),
                             torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-8));
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(
        comm, tensors.layout(),
        {.method = "adamw", .groups = {{.lr = 1e-2, .eps = 1e-8, .weight_decay = 0.1}}});
    for (int step = 0; step < kSteps; ++step) {
      tensors.zero_grad();
      loss_of(net, step).backward();
      tensors.step(optimizer);
      oracle.zero_grad();
      loss_of(*twin, step).backward();
      oracle.step();
    }
  });
  // torch skips a parameter without gradient, weight decay included; pride decays it
  for (const auto& item : net.named_parameters()) {
    if (item.key().starts_with("unused")) continue;
    const torch::Tensor other = twin->named_parameters()[item.key()];
    EXPECT_LE((item.value() - other).abs().max().item<double>(), kAdamTolerance) << item.key();
  }
}

// Lion of Chen et al. 2023 with momentum m, in the written order of operations.
void lion_oracle(torch::Tensor x, const torch::Tensor& grad, std::vector<float>& m, float lr,
                 float decay) {
  float* values = x.data_ptr<float>();
  const float* g = grad.data_ptr<float>();
  for (std::size_t i = 0; i < m.size(); ++i) {
    const float blend = 0.9F * m[i] + 0.1F * g[i];
    const float sign = static_cast<float>(blend > 0) - static_cast<float>(blend < 0);
    values[i] = values[i] * decay - lr * sign;
    m[i] = 0.99F * m[i] + 0.01F * g[i];
  }
}

void expect_steps_like_lion(const std::string& method, bool overlapped) {
  Net net;
  const auto twin = twin_of(net);
  ModuleTensors tensors(named(net));
  const double lr = 1e-2, weight_decay = 0.1;
  std::vector<std::vector<float>> momenta;
  for (const auto& p : twin->parameters()) {
    momenta.emplace_back(static_cast<std::size_t>(p.numel()));
  }
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, tensors.layout(),
                        {.method = method,
                         .groups = {{.lr = lr, .weight_decay = weight_decay}},
                         .bucket_coords = 64,
                         .overlap = overlapped});
    for (int step = 0; step < kSteps; ++step) {
      tensors.zero_grad();
      if (overlapped) tensors.begin_step(optimizer);
      loss_of(net, step).backward();
      overlapped ? tensors.finish_step() : tensors.step(optimizer);
      for (auto& p : twin->parameters()) p.mutable_grad() = torch::Tensor();
      loss_of(*twin, step).backward();
      const torch::NoGradGuard no_grad;
      const auto parameters = twin->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].grad().defined()) continue;
        lion_oracle(parameters[i].data(), parameters[i].grad().contiguous(), momenta[i],
                    static_cast<float>(lr), static_cast<float>(1 - lr * weight_decay));
      }
    }
  });
  for (const auto& item : net.named_parameters()) {
    if (item.key().starts_with("unused")) continue;
    const torch::Tensor other = twin->named_parameters()[item.key()];
    EXPECT_TRUE(torch::equal(item.value(), other)) << item.key();
  }
}

TEST(ModuleTensors, StepsLikeLionWhenAlone) { expect_steps_like_lion("lion", false); }
TEST(ModuleTensors, StepsLikeLionInOneVoteWhenAlone) {
  expect_steps_like_lion("dlion-vote", false);
}
TEST(ModuleTensors, OverlappedStepsAreTheSame) { expect_steps_like_lion("dlion-vote", true); }

// Steps of size lr from float32 masters are far below the last place of 16 bits: only masters that
// keep them get anywhere. Weights are the masters rounded, as torch rounds; gradients are widened
// exactly.
std::vector<float> masters_after_narrow_steps(torch::ScalarType dtype, bool overlap) {
  Net net;
  net.to(dtype);
  FlatBuffer masters;
  run_world(1, [&](Communicator& comm) {
    ModuleTensors tensors(named(net));
    const auto& slots = tensors.layout().tensors();
    Optimizer optimizer(comm, tensors.layout(), {.method = "sgdm", .groups = {{.lr = 1e-4}}});
    masters = FlatBuffer(tensors.layout().flat_size());
    optimizer.read(tensors.parameters(), masters.span());
    std::vector<float> expected(masters.span().begin(), masters.span().end());
    std::vector<float> m(expected.size());
    for (int step = 0; step < kSteps; ++step) {
      tensors.zero_grad();
      if (overlap) tensors.begin_step(optimizer);
      torch::Tensor loss = torch::zeros({});
      for (const auto& p : net.first->parameters()) {
        loss = loss + (p.to(torch::kFloat) - batch(step)[0][0]).square().mean();
      }
      loss.backward();
      overlap ? tensors.finish_step() : tensors.step(optimizer);
      optimizer.read(tensors.parameters(), masters.span());
      for (std::size_t t = 0; t < slots.size(); ++t) {
        const torch::Tensor weight = net.parameters()[t];
        if (weight.grad().defined()) {
          const torch::Tensor g = weight.grad().to(torch::kFloat).contiguous();
          for (std::size_t i = 0; i < slots[t].n; ++i) {
            float& momentum = m[slots[t].offset + i];
            momentum = 0.9F * momentum + g.data_ptr<float>()[i];
            expected[slots[t].offset + i] -= 1e-4F * momentum;
          }
        }
        const auto part = masters.span().subspan(slots[t].offset, slots[t].n);
        const torch::Tensor master =
            torch::from_blob(part.data(), weight.sizes(), torch::kFloat).clone();
        EXPECT_TRUE(torch::equal(weight, master.to(dtype))) << slots[t].spec.name;
      }
    }
    EXPECT_TRUE(std::ranges::equal(masters.span(), expected));
  });
  EXPECT_EQ(net.first->weight.scalar_type(), dtype);
  return {masters.span().begin(), masters.span().end()};
}

TEST(ModuleTensors, NarrowWeightsFollowFloat32Masters) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    torch::manual_seed(3);
    const auto plain = masters_after_narrow_steps(dtype, false);
    torch::manual_seed(3);
    EXPECT_EQ(masters_after_narrow_steps(dtype, true), plain);
  }
}

// One step of Lion alone for each of some gradients.
void train(ModuleTensors& tensors, Optimizer& optimizer, torch::Tensor p, int steps,
           bool overlap = false) {
  for (int step = 0; step < steps; ++step) {
    tensors.zero_grad();
    if (overlap) tensors.begin_step(optimizer);
    (p.to(torch::kFloat) * torch::arange(p.numel()).add(step).sin().view(p.sizes()))
        .sum()
        .backward();
    overlap ? tensors.finish_step() : tensors.step(optimizer);
  }
}

// Oracle: the same values in row-major order.
TEST(ModuleTensors, TensorsOfOtherStridesTakeTheSameSteps) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const bool overlap : {false, true}) {
      const torch::Tensor values = torch::randn({3, 4}).to(dtype);
      torch::Tensor plain = values.clone().set_requires_grad(true);
      torch::Tensor turned = values.t().contiguous().t().set_requires_grad(true);
      ASSERT_FALSE(turned.is_contiguous());
      const void* const storage = turned.data_ptr();
      run_world(1, [&](Communicator& comm) {
        ModuleTensors a({{.name = "p", .tensor = plain}}), b({{.name = "p", .tensor = turned}});
        const OptimizerOptions options = {.method = "lion", .groups = {{.lr = 1e-2}}};
        Optimizer of_a(comm, a.layout(), options), of_b(comm, b.layout(), options);
        train(a, of_a, plain, kSteps);
        train(b, of_b, turned, kSteps, overlap);
        EXPECT_EQ(of_a.hash(a.parameters()), of_b.hash(b.parameters()));
      });
      EXPECT_TRUE(torch::equal(plain, turned));
      EXPECT_FALSE(torch::equal(plain, values));
      EXPECT_EQ(turned.data_ptr(), storage);
    }
  }
}

TEST(ModuleTensors, WhatIsDoneToParametersBetweenStepsCounts) {
  torch::Tensor p = torch::ones({3, 4}).set_requires_grad(true);
  torch::Tensor q = torch::ones({3, 4}).set_requires_grad(true);
  run_world(1, [&](Communicator& comm) {
    ModuleTensors a({{.name = "p", .tensor = p}}), b({{.name = "p", .tensor = q}});
    const OptimizerOptions options = {.method = "lion", .groups = {{.lr = 1e-2}}};
    Optimizer of_a(comm, a.layout(), options), of_b(comm, b.layout(), options);
    train(a, of_a, p, 2);
    train(b, of_b, q, 2);
    {
      const torch::NoGradGuard no_grad;
      p.fill_(7);
      q.set_data(torch::full({4, 3}, 7.0F).t());  // other memory, other strides
    }
    train(a, of_a, p, 2);
    train(b, of_b, q, 2);
    EXPECT_TRUE(torch::equal(p, q));
    EXPECT_GT(q.min().item<float>(), 6);
  });
}

TEST(ModuleTensors, AnotherShapeOrDtypeIsRefusedByName) {
  for (const torch::Tensor& other : {torch::ones({4, 3}), torch::ones({3, 4}, torch::kHalf)}) {
    torch::Tensor p = torch::ones({3, 4}).set_requires_grad(true);
    ModuleTensors tensors({{.name = "odd", .tensor = p}});
    p.set_data(other);
    try {
      tensors.parameters();
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'odd' is"), std::string::npos) << text;
      EXPECT_NE(text.find("was Float [3, 4] on cpu before"), std::string::npos) << text;
    }
  }
}

TEST(ModuleTensors, OverlapHandsOverGradientsOfEarlierBackwardsToo) {
  Net net;
  ModuleTensors tensors(named(net));
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, tensors.layout(), {.method = "lion", .groups = {{.lr = 1e-2}}});
    tensors.zero_grad();
    net.unused->weight.sum().backward();
    const float before = net.unused->weight[0][0].item<float>();
    tensors.begin_step(optimizer);
    loss_of(net, 0).backward();
    tensors.finish_step();
    EXPECT_FLOAT_EQ(net.unused->weight[0][0].item<float>(), before - 1e-2F);
  });
}

// The same gradients on both: the host makes the steps of both, so that they agree to the bit.
TEST(ModuleTensors, StepsOfParametersOnAGpuAreThoseOfTheHost) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "this libtorch sees no CUDA device";
  for (const auto& [dtype, overlap] :
       {std::pair{torch::kFloat, false}, {torch::kBFloat16, false}, {torch::kBFloat16, true}}) {
    Net net;
    const auto twin = twin_of(net);
    net.to(dtype);
    twin->to(torch::kCUDA, dtype);
    ModuleTensors host(named(net)), gpu(named(*twin));
    const auto alone = make_thread_world(1);
    Optimizer of_host(*alone.front(), host.layout(), {.method = "dlion-vote"});
    Optimizer of_gpu(*alone.front(), gpu.layout(), {.method = "dlion-vote", .overlap = overlap});
    const auto on_host = net.parameters(), on_gpu = twin->parameters();
    for (int step = 0; step < kSteps; ++step) {
      host.zero_grad();
      gpu.zero_grad();
      torch::Tensor host_loss = torch::zeros({}, dtype), gpu_loss = host_loss.cuda();
      for (std::size_t i = 0; i < on_host.size(); ++i) {
        const torch::Tensor slope = torch::randn_like(on_host[i]);
        host_loss = host_loss + (on_host[i] * slope).sum();
        gpu_loss = gpu_loss + (on_gpu[i] * slope.cuda()).sum();
      }
      if (overlap) gpu.begin_step(of_gpu);
      host_loss.backward();
      gpu_loss.backward();
      host.step(of_host);
      overlap ? gpu.finish_step() : gpu.step(of_gpu);
      ASSERT_EQ(of_host.hash(host.parameters()), of_gpu.hash(gpu.parameters()))
          << dtype << ", step " << step;
    }
    for (std::size_t i = 0; i < on_host.size(); ++i) {
      EXPECT_TRUE(torch::equal(on_host[i], on_gpu[i].cpu())) << dtype << ", parameter " << i;
    }
  }
}

}  // namespace
}  // namespace pride
