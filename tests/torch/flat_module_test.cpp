// FlatModule against torch's own modules and optimizers: views, unused parameters, tied weights,
// steps.
// SPDX-License-Identifier: Apache-2.0
// Oracles: torch::optim::AdamW (tolerance below), Lion written out in float (equal to the bit).
#include "pride/torch/flat_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "torch/net.h"

namespace pride {
namespace {

// AdamW of pride and of torch order their roundings differently; steps here are of size 1e-2
constexpr double kAdamTolerance = 2e-6;
constexpr int kSteps = 10;

bool is_unused(const FlatModule& flat, const std::string& name) {
  return flat.unused()[flat.layout().index_of(name)];
}

TEST(FlatModule, KeepsOrderValuesAndPadding) {
  Net net;
  const auto before = twin_of(net);
  FlatModule flat(named(net));
  const auto& slots = flat.layout().tensors();
  ASSERT_EQ(slots.size(), 6U);
  EXPECT_EQ(slots[0].spec.name, "first.weight");
  EXPECT_EQ(slots[5].spec.name, "last.bias");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(flat.params().data()) % 64, 0U);
  std::vector<float> padded(flat.params().begin(), flat.params().end());
  const auto old = before->parameters();
  const auto now = net.parameters();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_TRUE(torch::equal(old[i], now[i])) << slots[i].spec.name;
    EXPECT_EQ(now[i].data_ptr<float>(), flat.params().data() + slots[i].offset);
    std::fill_n(padded.begin() + static_cast<std::ptrdiff_t>(slots[i].offset), slots[i].n, 0.0F);
  }
  EXPECT_TRUE(std::ranges::all_of(padded, [](float v) { return v == 0; })) << "padding is not zero";
}

TEST(FlatModule, ParametersWithoutAGradientSinceZeroGradAreUnused) {
  Net net;
  FlatModule flat(named(net));
  loss_of(net, 0).backward();
  EXPECT_FALSE(is_unused(flat, "first.weight"));
  EXPECT_FALSE(is_unused(flat, "last.bias"));
  EXPECT_TRUE(is_unused(flat, "unused.weight"));
  flat.zero_grad();
  EXPECT_TRUE(is_unused(flat, "first.weight"));
  EXPECT_TRUE(std::ranges::all_of(flat.grads(), [](float g) { return g == 0; }));
}

TEST(FlatModule, AccumulatesInPlaceWhatTorchAccumulates) {
  Net net;
  const auto twin = twin_of(net);
  FlatModule flat(named(net));
  for (int micro = 0; micro < 3; ++micro) {
    loss_of(net, micro).backward();
    loss_of(*twin, micro).backward();
  }
  const auto& slots = flat.layout().tensors();
  const auto expected = twin->parameters();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!expected[i].grad().defined()) continue;
    const torch::Tensor mine =
        torch::from_blob(flat.grads().data() + slots[i].offset, slots[i].spec.shape);
    EXPECT_TRUE(torch::equal(mine, expected[i].grad())) << slots[i].spec.name;
  }
}

TEST(FlatModule, TiedWeightsAppearOnceAndSumTheirGradients) {
  torch::Tensor table = torch::ones({4, 3}).set_requires_grad(true);
  FlatModule flat(
      {{.name = "wte.weight", .tensor = table}, {.name = "lm_head.weight", .tensor = table}});
  ASSERT_EQ(flat.layout().tensors().size(), 1U);
  EXPECT_EQ(flat.layout().tensors()[0].spec.name, "wte.weight");
  const torch::Tensor row = torch::embedding(table, torch::tensor({1}));
  torch::matmul(row, table.t()).sum().backward();
  // d/dtable of sum_j row . table_j: row to every row, and the sum of the rows to row 1
  EXPECT_EQ(flat.grads()[0], 1.0F);
  EXPECT_EQ(flat.grads()[3], 5.0F);
}

TEST(FlatModule, TakesInGradientsThatSomebodyReplacedOrRemoved) {
  Net net;
  FlatModule flat(named(net));
  loss_of(net, 0).backward();
  net.first->weight.mutable_grad() = torch::full({7, 5}, 2.5F);
  net.last->weight.mutable_grad() = torch::Tensor();
  flat.collect();
  EXPECT_EQ(flat.grads()[flat.layout().tensors()[0].offset], 2.5F);
  EXPECT_FALSE(is_unused(flat, "first.weight"));
  EXPECT_TRUE(is_unused(flat, "last.weight"));
  const auto& slot = flat.layout().tensors()[flat.layout().index_of("last.weight")];
  EXPECT_EQ(flat.grads()[slot.offset], 0.0F);
  EXPECT_EQ(net.last->weight.grad().data_ptr<float>(), flat.grads().data() + slot.offset);
}

TEST(FlatModule, LeavesFrozenParametersOut) {
  Net net;
  net.unused->weight.set_requires_grad(false);
  const FlatModule flat(named(net));
  EXPECT_EQ(flat.layout().tensors().size(), 5U);
  EXPECT_THROW(flat.layout().index_of("unused.weight"), InvalidArgument);
}

TEST(FlatModule, NamesTheParameterItRefuses) {
  const auto refusal = [](torch::Tensor tensor) -> std::string {
    try {
      FlatModule({{.name = "odd", .tensor = std::move(tensor)}});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal(torch::ones(3, torch::kDouble)).find("'odd'"), std::string::npos);
  EXPECT_NE(refusal(torch::Tensor()).find("'odd' is undefined"), std::string::npos);
  EXPECT_NE(refusal(torch::ones(3).set_requires_grad(true) * 2).find("'odd'"), std::string::npos);
  EXPECT_THROW(FlatModule({}), InvalidArgument);
}

TEST(FlatModule, StepsLikeTorchAdamWWhenAlone) {
  Net net;
  const auto twin = twin_of(net);
  FlatModule flat(named(net));
  torch::optim::AdamW oracle(twin->parameters(),
                             torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-8));
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(
        comm, flat.layout(),
        {.method = "adamw", .groups = {{.lr = 1e-2, .eps = 1e-8, .weight_decay = 0.1}}});
    for (int step = 0; step < kSteps; ++step) {
      flat.zero_grad();
      loss_of(net, step).backward();
      flat.step(optimizer);
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
  FlatModule flat(named(net));
  const double lr = 1e-2, weight_decay = 0.1;
  std::vector<std::vector<float>> momenta;
  for (const auto& p : twin->parameters()) {
    momenta.emplace_back(static_cast<std::size_t>(p.numel()));
  }
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, flat.layout(),
                        {.method = method,
                         .groups = {{.lr = lr, .weight_decay = weight_decay}},
                         .bucket_coords = 64,
                         .overlap = overlapped});
    for (int step = 0; step < kSteps; ++step) {
      flat.zero_grad();
      if (overlapped) flat.begin_step(optimizer);
      loss_of(net, step).backward();
      overlapped ? flat.finish_step() : flat.step(optimizer);
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

TEST(FlatModule, StepsLikeLionWhenAlone) { expect_steps_like_lion("lion", false); }
TEST(FlatModule, StepsLikeLionInOneVoteWhenAlone) { expect_steps_like_lion("dlion-vote", false); }
TEST(FlatModule, OverlappedStepsAreTheSame) { expect_steps_like_lion("dlion-vote", true); }

// Steps of size lr from float32 masters are far below bfloat16's last place: only masters that keep
// them get anywhere. Weights are the masters rounded, as torch rounds; gradients are widened
// exactly.
std::vector<float> masters_after_bf16_steps(bool overlap) {
  Net net;
  net.to(torch::kBFloat16);
  std::vector<float> masters;
  run_world(1, [&](Communicator& comm) {
    FlatModule flat(named(net));
    Optimizer optimizer(comm, flat.layout(), {.method = "sgdm", .groups = {{.lr = 1e-4}}});
    std::vector<float> expected(flat.params().begin(), flat.params().end());
    std::vector<float> m(expected.size());
    for (int step = 0; step < kSteps; ++step) {
      flat.zero_grad();
      if (overlap) flat.begin_step(optimizer);
      net.forward(batch(step).to(torch::kBFloat16)).to(torch::kFloat).square().mean().backward();
      overlap ? flat.finish_step() : flat.step(optimizer);
      const auto& slots = flat.layout().tensors();
      for (std::size_t t = 0; t < slots.size(); ++t) {
        const torch::Tensor weight = net.parameters()[t];
        if (!flat.unused()[t]) {
          const torch::Tensor g = weight.grad().to(torch::kFloat).contiguous();
          for (std::size_t i = 0; i < slots[t].n; ++i) {
            float& momentum = m[slots[t].offset + i];
            momentum = 0.9F * momentum + g.data_ptr<float>()[i];
            expected[slots[t].offset + i] -= 1e-4F * momentum;
          }
        }
        const auto part = flat.params().subspan(slots[t].offset, slots[t].n);
        const torch::Tensor master =
            torch::from_blob(part.data(), weight.sizes(), torch::kFloat).clone();
        EXPECT_TRUE(torch::equal(weight, master.to(torch::kBFloat16))) << slots[t].spec.name;
      }
    }
    masters.assign(flat.params().begin(), flat.params().end());
    EXPECT_EQ(masters, expected);
  });
  EXPECT_EQ(net.first->weight.scalar_type(), torch::kBFloat16);
  return masters;
}

TEST(FlatModule, Bf16WeightsFollowFloat32Masters) {
  torch::manual_seed(3);
  const auto plain = masters_after_bf16_steps(false);
  torch::manual_seed(3);
  EXPECT_EQ(masters_after_bf16_steps(true), plain);
}

TEST(FlatModule, OverlapHandsOverGradientsOfEarlierBackwardsToo) {
  Net net;
  FlatModule flat(named(net));
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, flat.layout(), {.method = "lion", .groups = {{.lr = 1e-2}}});
    flat.zero_grad();
    net.unused->weight.sum().backward();
    const float before = flat.params()[flat.layout().tensors()[2].offset];
    flat.begin_step(optimizer);
    loss_of(net, 0).backward();
    flat.finish_step();
    EXPECT_FLOAT_EQ(flat.params()[flat.layout().tensors()[2].offset], before - 1e-2F);
  });
}

// The same gradients on both: the host makes the steps of both, so that they agree to the bit.
TEST(FlatModule, StepsOfParametersOnAGpuAreThoseOfTheHost) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "this libtorch sees no CUDA device";
  for (const auto& [dtype, overlap] :
       {std::pair{torch::kFloat, false}, {torch::kBFloat16, false}, {torch::kBFloat16, true}}) {
    Net net;
    const auto twin = twin_of(net);
    net.to(dtype);
    twin->to(torch::kCUDA, dtype);
    FlatModule host(named(net)), gpu(named(*twin));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(gpu.params().data()) % 64, 0U);
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
      ASSERT_TRUE(std::ranges::equal(host.params(), gpu.params())) << dtype << ", step " << step;
    }
    for (std::size_t i = 0; i < on_host.size(); ++i) {
      EXPECT_TRUE(torch::equal(on_host[i], on_gpu[i].cpu())) << dtype << ", parameter " << i;
    }
  }
}

}  // namespace
}  // namespace pride
