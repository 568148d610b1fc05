// ModuleTensors whose method runs on a GPU, emulated on the CPU. Oracle: the same module with the
// method on the host, equal to the bit except for matrix products.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "rules/orthogonalise.h"
#include "torch/fake_gpu.h"
#include "torch/net.h"
#include "torch/newton_schulz.h"

namespace pride {
namespace {

constexpr int kWorld = 3, kSteps = 6;

struct Case {
  std::string method;
  torch::ScalarType dtype = torch::kFloat32;
  bool overlap = false;
  std::map<std::string, std::string> options = {};
};

// Rank 0's parameters as float32 after a few steps of all ranks: with a parameter in other strides,
// one that is mostly unused, and one that is added on the way.
std::vector<torch::Tensor> train(const Case& c, RunOn where) {
  std::vector<torch::Tensor> values;
  torch::manual_seed(3);
  Net start;
  run_world(kWorld, [&](Communicator& comm) {
    const auto net = twin_of(start);
    net->to(c.dtype);
    net->first->weight.set_data(net->first->weight.detach().t().contiguous().t());
    auto list = named(*net);
    const NamedParameter added{.name = "last.bias", .tensor = net->last->bias, .group = 1};
    std::erase_if(list, [&](const auto& p) { return p.name == added.name; });
    ModuleTensors tensors(list);
    OptimizerOptions options{.method = c.method,
                             .options = c.options,
                             .groups = {{.lr = 1e-2}},
                             .bucket_coords = 16,
                             .overlap = c.overlap};
    EXPECT_EQ(tensors.run_on(where, options), "");
    EXPECT_EQ(tensors.is_on_device(), where == RunOn::kDevice);
    Optimizer optimizer(comm, tensors.layout(), options);
    tensors.broadcast(optimizer);
    for (int step = 0; step < kSteps; ++step) {
      if (step == 2) tensors.add(optimizer, {added}, {{.lr = 1e-3}});
      tensors.zero_grad();
      if (c.overlap) tensors.begin_step(optimizer);
      torch::Tensor loss = net->forward(batch(step + comm.rank()).to(c.dtype)).square().mean();
      if (step == 3) loss = loss + net->unused->weight.sum();
      loss.backward();
      torch::Tensor& grad = net->first->weight.mutable_grad();
      if (!c.overlap) grad = grad.contiguous();  // in other strides than its parameter
      c.overlap ? tensors.finish_step() : tensors.step(optimizer);
    }
    tensors.change([&](auto params) { optimizer.to_common(params); });
    if (comm.rank() != 0) return;
    for (const auto& p : net->parameters())
      values.push_back(p.detach().to(torch::kFloat32).clone());
  });
  return values;
}

class OnAGpu : public ::testing::TestWithParam<Case> {};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.method << ' ' << c.dtype << (c.overlap ? " overlapped" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Methods, OnAGpu,
    ::testing::Values(Case{"dlion-vote"}, Case{"dlion-vote", torch::kFloat32, true},
                      Case{"dlion-vote", torch::kBFloat16},
                      Case{"dlion-avg", torch::kBFloat16, true}, Case{"lion-cub", torch::kBFloat16},
                      Case{"adamw"}, Case{"local-vote", torch::kBFloat16, false, {{"h", "2"}}}));

TEST_P(OnAGpu, HasTheBitsOfTheHost) {
  const auto wanted = train(GetParam(), RunOn::kHost);
  const FakeGpu gpu;
  const int before = FakeGpu::led();
  const auto got = train(GetParam(), RunOn::kDevice);
  EXPECT_GE(FakeGpu::led() - before, kWorld * kSteps);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], wanted[i])) << "parameter " << i;
  }
}

TEST(OnAGpu, OrthogonalisesByTorch) {
  if (!rules::has_blas()) GTEST_SKIP() << "without BLAS there is no method of matrices";
  const Case muon{"dlion-muon", torch::kFloat32, true};
  const auto wanted = train(muon, RunOn::kHost);
  const FakeGpu gpu;
  const auto got = train(muon, RunOn::kDevice);
  double differ = 0, all = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    differ += (got[i] - wanted[i]).abs().gt(1e-5).sum().item<double>();
    all += static_cast<double>(got[i].numel());
  }
  EXPECT_LE(differ, 0.05 * all) << "signs of entries near zero may differ, others must not";
}

// Query, key and value side by side: each is a matrix within the rows of another.
TEST(OnAGpu, OrthogonalisesPartsOfAMatrixByTorch) {
  if (!rules::has_blas()) GTEST_SKIP() << "without BLAS there is no method of matrices";
  const auto stepped = [](RunOn where) {
    torch::manual_seed(3);
    torch::Tensor p = torch::zeros({6, 18}).set_requires_grad(true);
    ModuleTensors tensors({{.name = "qkv", .tensor = p}});
    OptimizerOptions options{.method = "dlion-muon", .groups = {{.lr = 1}}};
    EXPECT_EQ(tensors.run_on(where, options), "");
    const auto alone = make_thread_world(1);
    Optimizer optimizer(*alone.front(), tensors.layout(), options);
    p.mutable_grad() = torch::randn({6, 18});
    tensors.step(optimizer);
    return p.detach().clone();
  };
  const torch::Tensor wanted = stepped(RunOn::kHost);
  const FakeGpu gpu;
  EXPECT_LE(stepped(RunOn::kDevice).ne(wanted).sum().item<int>(), 5) << "of 108 signs";
}

// Every gradient that is handed over in backward is behind the work that made it.
TEST(OnAGpu, FollowsTorchBeforeItReads) {
  const FakeGpu gpu;
  Net net;
  ModuleTensors tensors(named(net));
  OptimizerOptions options{.method = "dlion-vote", .overlap = true};
  ASSERT_EQ(tensors.run_on(RunOn::kAuto, options), "");
  const auto alone = make_thread_world(1);
  Optimizer optimizer(*alone.front(), tensors.layout(), options);
  tensors.zero_grad();
  tensors.begin_step(optimizer);
  const int begun = FakeGpu::followed();
  loss_of(net, 0).backward();
  EXPECT_EQ(FakeGpu::followed() - begun, 4) << "net.first and net.last: weight and bias";
  const int led = FakeGpu::led();
  tensors.finish_step();
  EXPECT_EQ(FakeGpu::led() - led, 1);
  for (const auto& call :
       {+[](ModuleTensors& t) { t.parameters(); }, +[](ModuleTensors& t) { t.gradients(); }}) {
    const int before = FakeGpu::followed();
    call(tensors);
    EXPECT_EQ(FakeGpu::followed() - before, 1);
  }
}

TEST(OnAGpu, WithoutMemoryTheHostTakesOver) {
  const FakeGpu gpu;
  Net net;
  ModuleTensors tensors(named(net));
  OptimizerOptions options{.method = "dlion-vote"};
  ASSERT_EQ(tensors.run_on(RunOn::kAuto, options), "");
  ASSERT_TRUE(tensors.is_on_device());
  FakeGpu::fill_up();
  const std::string reason = tensors.run_on(RunOn::kAuto, options);
  EXPECT_NE(reason.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << reason;
  EXPECT_FALSE(tensors.is_on_device());
  EXPECT_EQ(options.device, nullptr);
  FakeGpu::fill_up();
  EXPECT_THROW(tensors.run_on(RunOn::kDevice, options), InvalidArgument);
  EXPECT_EQ(options.device, nullptr);
}

TEST(NewtonSchulz, IsThatOfTheHost) {
  for (const auto& [rows, cols] : {std::pair{30, 70}, {70, 30}, {16, 16}}) {
    torch::manual_seed(1);
    const torch::Tensor all = torch::randn({3, rows, cols});
    for (const auto products : {torch::kFloat32, torch::kBFloat16}) {
      const torch::Tensor mine = all.clone();
      const torch::Tensor each[] = {mine[0], mine[1], mine[2]};
      newton_schulz(each, 5, products);
      const torch::Tensor values = torch::linalg_svdvals(mine);
      EXPECT_GT(values.min().item<double>(), 0.3);
      EXPECT_LT(values.max().item<double>(), 1.3);
      if (!rules::has_blas()) continue;
      const torch::Tensor wanted = all.clone();
      rules::Orthogonaliser reference(5);
      for (int i = 0; i < 3; ++i) {
        reference.run({wanted[i].data_ptr<float>(), static_cast<std::size_t>(rows),
                       static_cast<std::size_t>(cols), static_cast<std::size_t>(cols)});
      }
      const double limit = products == torch::kFloat32 ? 1e-4 : 0.05;
      EXPECT_LT((mine - wanted).abs().max().item<double>(), limit) << rows << " x " << cols;
    }
  }
}

TEST(NewtonSchulz, ZerosStayZeros) {
  const torch::Tensor zeros[] = {torch::zeros({4, 3})};
  newton_schulz(zeros, 5, torch::kFloat32);
  EXPECT_EQ(zeros[0].abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace pride
