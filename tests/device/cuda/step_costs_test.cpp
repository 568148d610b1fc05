// What a step asks of the driver: launches, copies, waits and allocations, as the fake counts them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/machine.h"
#include "pride/optimizer.h"
#include "pride/virtual_workers.h"
#include "rules/orthogonalise.h"
#include "support/training.h"

namespace pride {
namespace {

constexpr int kWorld = 4;
const std::vector<TensorSpec> kLong = {{"w", {256, 128}}, {"b", {10}}};

struct StepRun {
  std::string method = "dlion-vote:route=sharded";
  bool one_by_one = false;  // gradients
  bool overlap = false;
  std::size_t bucket_coords = 1 << 20;  // one bucket
  int virtual_workers = 0;
  bool unused = false;        // some tensors
  bool long_tensors = false;  // of several blocks of scales for each rank
};

OptimizerOptions options_of(const StepRun& run) {
  OptimizerOptions options;
  testing::set_method(options, run.method);
  options.overlap = run.overlap;
  options.bucket_coords = run.bucket_coords;
  options.orthogonalise = [](const DeviceMatrices&, void*) {};  // what torch queues
  return options;
}

// Tensors in the memory of the fake, which the host may access.
class Model {
 public:
  Model(Device& device, const Layout& layout) {
    for (const TensorSlot& slot : layout.tensors()) {
      for (const float value : {0.5f, 0.25f}) {
        auto* const at = static_cast<float*>(device.allocate(4 * slot.n));
        std::fill_n(at, slot.n, value);
        if (value == 0.5f) params.emplace_back(at, slot.n, DType::kFloat32);
        if (value == 0.25f) grads.emplace_back(at, slot.n, DType::kFloat32);
      }
    }
  }
  std::vector<Tensor> params;
  std::vector<ConstTensor> grads;
};

void step(Replica& replica, const Model& model, const StepRun& run, int number) {
  const std::size_t n = model.params.size();
  const auto flags = std::make_unique<bool[]>(n);
  for (std::size_t t = 0; t < n; ++t) flags[t] = run.unused && testing::unused(0, number, t);
  if (auto* const workers = dynamic_cast<VirtualWorkers*>(&replica)) {
    for (int worker = 0; worker < run.virtual_workers; ++worker) {
      workers->hand_over(worker, model.params, model.grads, {flags.get(), n});
    }
    workers->step(model.params);
    return;
  }
  auto& optimizer = dynamic_cast<Optimizer&>(replica);
  if (run.one_by_one) {
    optimizer.begin_step(model.params);
    for (std::size_t t = n; t-- > 0;) {
      optimizer.gradient_ready(
          t, flags[t] ? ConstTensor(nullptr, model.grads[t].n, DType::kFloat32) : model.grads[t]);
    }
    optimizer.finish_step();
  } else {
    optimizer.step(model.params, model.grads, {flags.get(), n});
  }
}

// Calls of a rank in `steps` steps after the first four, which allocate.
std::vector<int> calls_of(const StepRun& run, const std::vector<const char*>& calls,
                          int steps = 1) {
  const Layout layout(run.long_tensors ? kLong : testing::kTensors);
  const auto train = [&](int n) {
    std::vector<int> before, after;
    for (const char* call : calls) before.push_back(fake().calls(call));
    run_world(run.virtual_workers > 0 ? 1 : kWorld, [&](Communicator& comm) {
      const std::shared_ptr<Device> device = device_on("fake");
      const Model model(*device, layout);
      OptimizerOptions options = options_of(run);
      options.device = device;
      std::unique_ptr<Replica> optimizer;
      if (run.virtual_workers > 0) {
        optimizer = std::make_unique<VirtualWorkers>(layout, options,
                                                     VirtualWorkersOptions{run.virtual_workers});
      } else {
        optimizer = std::make_unique<Optimizer>(comm, layout, options);
      }
      for (int number = 0; number < n; ++number) step(*optimizer, model, run, number);
    });
    for (std::size_t i = 0; i < calls.size(); ++i) {
      after.push_back(fake().calls(calls[i]) - before[i]);
    }
    return after;
  };
  const auto few = train(4), many = train(4 + steps);
  std::vector<int> all;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ((many[i] - few[i]) % (run.virtual_workers > 0 ? 1 : kWorld), 0) << calls[i];
    all.push_back((many[i] - few[i]) / (run.virtual_workers > 0 ? 1 : kWorld));
  }
  return all;
}

using Calls = std::vector<int>;

TEST(StepCosts, OneLaunchOfEachKernelForABucketOfAllShards) {
  const auto launches = [](const std::string& method) {
    return calls_of({.method = method}, {"cuLaunchKernel"});
  };
  EXPECT_EQ(launches("dlion-vote:route=sharded"), Calls{3});  // signs, cells, and the vote
  EXPECT_EQ(launches("dlion-vote:route=sharded,tie=zero"), Calls{2});
  EXPECT_EQ(launches("signsgd-ef"), Calls{3});  // signs, errors, and their mean
  EXPECT_EQ(launches("adamw"), Calls{4});       // fill, widen, check, and the step
  EXPECT_EQ(calls_of({.bucket_coords = 1024}, {"cuLaunchKernel"}), Calls{12});  // of four buckets
}

// Frames of all shards and the word of faults go to the host in one copy, and results come in one.
// Each launch takes one more for its jobs, and the bits of ties, where a vote may have them, are
// one more to the host.
TEST(StepCosts, OneCopyEachWayForTheFramesOfABucket) {
  const auto copies = [](const std::string& method) {
    const std::vector<int> calls =
        calls_of({.method = method, .long_tensors = true},
                 {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuLaunchKernel"});
    return Calls{calls[0], calls[1] - calls[2]};
  };
  for (const char* method : {"dlion-vote:route=sharded,tie=zero", "dlion-avg:route=sharded",
                             "dlion-avg:route=sharded,counts=planes"}) {
    EXPECT_EQ(copies(method), (Calls{1, 1})) << method;
  }
  for (const char* method : {"dlion-vote:route=sharded",
                             "lion-cub:granularity=block,shared=no,sync=none,route=sharded"}) {
    EXPECT_EQ(copies(method), (Calls{2, 1})) << method;
  }
  // error feedback brings back the frames that were sent, too
  EXPECT_EQ(copies("signsgd-ef"), (Calls{1, 2}));
  EXPECT_EQ(copies("local-ef:h=1"), (Calls{1, 2}));
  // momenta have frames of their own
  EXPECT_EQ(copies("lion-cub:granularity=block,shared=no,sync=all,sync_every=1,route=sharded"),
            (Calls{3, 2}));
  if (!rules::has_blas()) return;
  EXPECT_EQ(copies("turn-muon"), (Calls{2, 1}));
}

TEST(StepCosts, TheQueueAndTheCallerWaitForEachOtherOnceAStep) {
  for (const bool one_by_one : {false, true}) {
    EXPECT_EQ(calls_of({.one_by_one = one_by_one}, {"cuStreamWaitEvent"}), Calls{2});
  }
  // with overlap when buckets are complete, here at two of the tensors, and when the step ends
  EXPECT_EQ(
      calls_of({.one_by_one = true, .overlap = true, .bucket_coords = 1024}, {"cuStreamWaitEvent"}),
      Calls{3});
}

TEST(StepCosts, TemporaryValuesKeepTheirMemory) {
  std::vector<std::string> methods = {"local-vote:h=2,drift_feedback=0.5", "local-vote:h=1",
                                      "lion-cub:feedback=yes"};
  if (rules::has_blas()) {
    methods.insert(methods.end(), {"dlion-muon", "turn-muon", "local-vote:h=2,local=muon"});
  }
  for (const std::string& method : methods) {
    for (const int workers : {0, 3}) {
      const StepRun run{.method = method, .virtual_workers = workers};
      EXPECT_EQ(calls_of(run, {"cuMemAllocAsync", "cuMemFreeAsync", "cuMemHostAlloc"}, 4),
                (Calls{0, 0, 0}))
          << method << ", " << workers << " workers";
    }
  }
}

// The host waits for the frames of each bucket, and where its next call needs a result.
TEST(StepCosts, TheHostWaitsOnceForWhatAStepNeeds) {
  const auto waits = [](StepRun run) { return calls_of(run, {"cuEventSynchronize"}, 3); };
  EXPECT_EQ(waits({}), Calls{3});
  // which tensors without a gradient have drifted: for all of them at once
  EXPECT_EQ(waits({.method = "local-vote:drift_feedback=0.5", .unused = true}), Calls{6});
  EXPECT_EQ(waits({.method = "lion-cub"}), Calls{6});  // sums
  if (!rules::has_blas()) return;
  EXPECT_EQ(waits({.method = "turn-muon"}), Calls{3});
}

}  // namespace
}  // namespace pride
