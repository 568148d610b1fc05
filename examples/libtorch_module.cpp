// Three workers train one libtorch module together. Each makes its own copy with its own weights.
// ModuleTensors::broadcast() copies rank 0's weights to all before the first forward, as
// DistributedDataParallel does. Exits with 1 if the workers' weights differ in the end, or the loss
// is not low.
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cstdio>

#include "pride/comm/thread_comm.h"
#include "pride/optimizer.h"
#include "pride/torch/module_tensors.h"

namespace {

constexpr int kWorkers = 3;
constexpr int kSteps = 1000;
constexpr double kLr = 5e-3;

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(1, 64));
    out = register_module("out", torch::nn::Linear(64, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x))); }

  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

std::vector<pride::NamedParameter> parameters_of(const torch::nn::Module& module) {
  std::vector<pride::NamedParameter> list;
  for (const auto& item : module.named_parameters()) list.push_back({item.key(), item.value()});
  return list;
}

struct Result {
  std::uint64_t hash = 0;
  double loss = 0;
};

// One worker: fits sin(3x) on [-1, 1], from its own points.
Result train(pride::Communicator& comm) {
  Net net;
  pride::ModuleTensors tensors(parameters_of(net));
  pride::Optimizer optimizer(comm, tensors.layout(),
                             {.method = "dlion-vote", .groups = {{.lr = kLr, .weight_decay = 0}}});
  tensors.broadcast(optimizer);  // without it the first step names the ranks that differ

  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(comm.rank()));
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    const auto x = torch::rand({64, 1}, random).mul(2).sub(1);
    tensors.zero_grad();
    const auto loss = torch::mse_loss(net.forward(x), torch::sin(3 * x));
    loss.backward();
    optimizer.set_group({.lr = kLr * (1 - static_cast<double>(step) / kSteps)});
    tensors.step(optimizer);
    result.loss = loss.item<double>();
    if (comm.rank() == 0 && step % 250 == 0)
      std::printf("step %3d  loss %.4f\n", step, result.loss);
  }
  result.hash = optimizer.hash(tensors.parameters());
  return result;
}

}  // namespace

int main() {
  std::vector<Result> results(kWorkers);
  pride::run_world(kWorkers, [&](pride::Communicator& comm) {
    results[static_cast<std::size_t>(comm.rank())] = train(comm);
  });
  bool equal = true;
  for (const Result& r : results) equal = equal && r.hash == results[0].hash;
  std::printf("last loss %.4f, weights %s on all workers\n", results[0].loss,
              equal ? "equal" : "NOT EQUAL");
  return equal && results[0].loss < 0.02 ? 0 : 1;
}
