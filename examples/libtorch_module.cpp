// Several workers train one libtorch module together: three threads, or the processes of an MPI job
// (mpirun -n 3, srun --mpi=pmix -n 3). Each makes its own copy with other initial weights.
// ModuleTensors::broadcast() copies rank 0's weights to all before the first forward, as
// DistributedDataParallel does. Exits with 1 if the workers' final weights differ, or the loss is
// not low.
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/optimizer.h"
#include "pride/torch/module_tensors.h"
#ifdef EXAMPLE_HAS_MPI  // CMakeLists.txt: this pride has MPI
#include "pride/comm/mpi_comm.h"
#endif

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

// True if all workers' weights have the same hash. Collective.
bool is_equal_on_all(pride::Communicator& comm, std::uint64_t hash) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&hash, 1)), std::as_writable_bytes(std::span(all)));
  return std::ranges::all_of(all, [&](std::uint64_t other) { return other == hash; });
}

// One worker: fits sin(3x) on [-1, 1], from its own points. Returns whether it succeeded.
bool train(pride::Communicator& comm) {
  Net net;
  pride::ModuleTensors tensors(parameters_of(net));
  pride::OptimizerOptions options{.method = "dlion-vote",
                                  .groups = {{.lr = kLr, .weight_decay = 0}}};
  // runs the method on the parameters' GPU, if they are on one (here they are not)
  const std::string why_host = tensors.run_on(pride::RunOn::kAuto, options);
  if (!why_host.empty()) std::printf("the method runs on the host: %s\n", why_host.c_str());
  pride::Optimizer optimizer(comm, tensors.layout(), options);
  tensors.broadcast(optimizer);  // without it the first step names the ranks that differ

  auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(comm.rank()));
  double last_loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto x = torch::rand({64, 1}, random).mul(2).sub(1);
    tensors.zero_grad();
    const auto loss = torch::mse_loss(net.forward(x), torch::sin(3 * x));
    loss.backward();  // this worker's own gradients; do not average them
    optimizer.set_group({.lr = kLr * (1 - static_cast<double>(step) / kSteps)});
    tensors.step(optimizer);
    last_loss = loss.item<double>();
    if (comm.rank() == 0 && step % 250 == 0) std::printf("step %3d  loss %.4f\n", step, last_loss);
  }

  std::uint64_t hash = 0;
  tensors.read([&](std::span<const pride::Tensor> params) { hash = optimizer.hash(params); });
  const bool equal = is_equal_on_all(comm, hash);
  if (comm.rank() == 0)
    std::printf("last loss %.4f, weights %s on all %d workers (%s)\n", last_loss,
                equal ? "equal" : "NOT EQUAL", comm.size(), std::string(comm.transport()).c_str());
  return equal && (comm.rank() != 0 || last_loss < 0.02);
}

#ifdef EXAMPLE_HAS_MPI
// This process is one worker of an MPI job.
int run_as_process() {
  const pride::MpiEnvironment mpi;  // first, and destroyed last
  const auto comm = pride::make_mpi_communicator();
  try {
    return train(*comm) ? 0 : 1;
  } catch (const std::exception& error) {
    comm->fail(error.what());  // the other ranks throw this reason instead of waiting
    std::fprintf(stderr, "rank %d: %s\n", comm->rank(), error.what());
    return 1;
  }
}
#endif

}  // namespace

int main() {
#ifdef EXAMPLE_HAS_MPI
  if (pride::launched_by_mpi()) return run_as_process();
#endif
  std::atomic<bool> good = true;
  pride::run_world(kWorkers, [&](pride::Communicator& comm) {
    if (!train(comm)) good = false;
  });
  return good ? 0 : 1;
}
