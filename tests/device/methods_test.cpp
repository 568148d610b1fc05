// Methods on the tests' device. Oracle: the bits of the same run on the host.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "pride/bf16.h"
#include "pride/float16.h"
#include "pride/virtual_workers.h"
#include "rules/orthogonalise.h"
#include "support/test_device.h"
#include "support/training.h"

namespace pride {
namespace {

using testing::OnDevice;
using testing::TestDevice;

// One model on a device of its own, each tensor by itself, dtypes going round from `first_dtype`
// on.
class Model {
 public:
  Model(TestDevice& device, const Layout& layout, std::size_t first_dtype)
      : device_(device), layout_(layout) {
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      dtypes_.push_back(static_cast<DType>((first_dtype + t) % 3));
      const std::size_t n = layout.tensors()[t].n;
      params.emplace_back(device.allocate(n * 4), n, dtypes_[t]);
      grads.emplace_back(device.allocate(n * 4), n, dtypes_[t]);
      put(params[t].data, dtypes_[t], testing::initial_of(layout, t));
    }
  }
  void set_gradients(int rank, std::int64_t step, const testing::Training& run) {
    for (std::size_t t = 0; t < grads.size(); ++t) {
      std::vector<float> g(grads[t].n);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = run.grad(rank, step, t, i);
      put(const_cast<void*>(grads[t].data), dtypes_[t], g);
    }
  }
  // In their own types, one after the other.
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    for (std::size_t t = 0; t < params.size(); ++t) {
      std::vector<std::byte> part(params[t].n * size_of(dtypes_[t]));
      device_.get(params[t].data, part);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  std::vector<Tensor> params;
  std::vector<ConstTensor> grads;

 private:
  void put(void* at, DType dtype, std::span<const float> values) {
    if (dtype == DType::kFloat32) return device_.put(at, std::as_bytes(values));
    std::vector<std::uint16_t> narrow(values.size());
    if (dtype == DType::kBFloat16) {
      to_bf16(values, {reinterpret_cast<BFloat16*>(narrow.data()), narrow.size()});
    } else {
      to_float16(values, {reinterpret_cast<Float16*>(narrow.data()), narrow.size()});
    }
    device_.put(at, std::as_bytes(std::span(narrow)));
  }

  TestDevice& device_;
  const Layout& layout_;
  std::vector<DType> dtypes_;
};

struct Result {
  std::vector<std::byte> params;
  StateDict state;
  std::uint64_t hash = 0, bytes = 0;
  int skipped = 0;
};

// A run of all ranks, on devices of their own or, with the same tensors, on the host.
struct DeviceRun : testing::Training {
  std::size_t first_dtype = 0;
  bool on_device = true;
  bool one_by_one = false;  // gradients as they become ready
  int saved_after = 0;      // above 0: state and parameters go on in a new optimizer
  TestDevice::Planted planted = TestDevice::Planted::kNothing;
};

std::vector<Result> run_all(const Layout& layout, const DeviceRun& run) {
  std::vector<Result> results(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    Result& result = results[static_cast<std::size_t>(comm.rank())];
    const auto device = std::make_shared<TestDevice>(run.planted);
    Model model(*device, layout, run.first_dtype);
    const std::size_t of_model = device->held();
    OptimizerOptions options = run.options;
    if (!run.weights.empty()) {
      options.vote_weight = run.weights[static_cast<std::size_t>(comm.rank())];
    }
    options.device = device;
    options.orthogonalise = testing::by_blas;
    auto optimizer = std::make_unique<Optimizer>(comm, layout, options);
    const std::size_t n = layout.tensors().size();
    for (std::int64_t step = 0; step < run.steps; ++step) {
      if (run.saved_after > 0 && step == run.saved_after) {
        const StateDict state = optimizer->save();
        optimizer = std::make_unique<Optimizer>(comm, layout, options);
        optimizer->place(model.params);
        optimizer->load(state);
      }
      model.set_gradients(comm.rank(), step, run);
      const auto flags = std::make_unique<bool[]>(n);
      for (std::size_t t = 0; t < n; ++t) flags[t] = run.unused && run.unused(comm.rank(), step, t);
      StepReport report;
      if (run.one_by_one) {
        optimizer->begin_step(model.params);
        for (std::size_t t = n; t-- > 0;) {
          optimizer->gradient_ready(
              t, flags[t] ? ConstTensor(nullptr, model.grads[t].n, model.grads[t].dtype)
                          : model.grads[t]);
        }
        report = optimizer->finish_step();
      } else {
        report = optimizer->step(model.params, model.grads, {flags.get(), n});
      }
      result.bytes += report.bytes_sent + report.bytes_received;
      result.skipped += report.skipped ? 1 : 0;
    }
    result.hash = optimizer->hash(model.params);
    result.state = optimizer->save();
    result.params = model.bytes();
    EXPECT_EQ(testing::held_with_tensors(*optimizer), device->held() - of_model);
  });
  return results;
}

// The same on the host.
std::vector<Result> run_on_host(const Layout& layout, const DeviceRun& run) {
  std::vector<Result> results(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    Result& result = results[static_cast<std::size_t>(comm.rank())];
    TestDevice device;
    Model model(device, layout, run.first_dtype);
    const std::size_t n = layout.tensors().size();
    std::vector<std::vector<std::byte>> params(n), grads(n);
    std::vector<Tensor> tensors;
    std::vector<ConstTensor> gradients;
    for (std::size_t t = 0; t < n; ++t) {
      const Tensor& on = model.params[t];
      params[t].resize(on.n * size_of(on.dtype));
      grads[t].resize(params[t].size());
      device.get(on.data, params[t]);
      tensors.emplace_back(params[t].data(), on.n, on.dtype);
      gradients.emplace_back(grads[t].data(), on.n, on.dtype);
    }
    OptimizerOptions options = run.options;
    if (!run.weights.empty()) {
      options.vote_weight = run.weights[static_cast<std::size_t>(comm.rank())];
    }
    Optimizer optimizer(comm, layout, options);
    for (std::int64_t step = 0; step < run.steps; ++step) {
      model.set_gradients(comm.rank(), step, run);
      for (std::size_t t = 0; t < n; ++t) device.get(model.grads[t].data, grads[t]);
      const auto flags = std::make_unique<bool[]>(n);
      for (std::size_t t = 0; t < n; ++t) flags[t] = run.unused && run.unused(comm.rank(), step, t);
      const StepReport report = optimizer.step(tensors, gradients, {flags.get(), n});
      result.bytes += report.bytes_sent + report.bytes_received;
      result.skipped += report.skipped ? 1 : 0;
    }
    result.hash = optimizer.hash(tensors);
    result.state = optimizer.save();
    for (const auto& part : params) {
      result.params.insert(result.params.end(), part.begin(), part.end());
    }
  });
  return results;
}

void expect_equal(const DeviceRun& run) {
  const Layout layout(testing::kTensors);
  const auto device = run_all(layout, run), host = run_on_host(layout, run);
  for (std::size_t r = 0; r < host.size(); ++r) {
    EXPECT_TRUE(device[r].params == host[r].params) << "parameters of rank " << r;
    EXPECT_EQ(device[r].hash, host[r].hash) << "rank " << r;
    EXPECT_EQ(device[r].bytes, host[r].bytes) << "rank " << r;
    EXPECT_EQ(device[r].skipped, host[r].skipped) << "rank " << r;
    EXPECT_TRUE(testing::same(device[r].state, host[r].state)) << "state of rank " << r;
  }
}

DeviceRun run_of(const std::string& method) {
  DeviceRun run;
  run.world = 3;
  run.steps = 4;
  testing::set_method(run.options, method);
  run.options.seed = 5;
  run.options.groups[0].weight_decay = 0.1;
  run.options.bucket_coords = 1024;
  run.unused = testing::unused;
  return run;
}

std::vector<std::string> variants() {
  std::vector<std::string> all;
  for (const std::string& method : method_names()) {
    if (method_info(method, 1).on_device) all.push_back(method);
  }
  for (const char* vote : {"dlion-vote", "signum-vote"}) {
    for (const char* option : {":tie=zero", ":route=sharded", ":route=one-shot"}) {
      all.push_back(std::string(vote) + option);
    }
  }
  all.insert(all.end(), {"dlion-avg:route=sharded",
                         "dlion-avg:counts=planes",
                         "adamw:dense=native",
                         "adamw:dense=int8",
                         "lion:dense=int4",
                         "sgdm:dense=int2",
                         "diloco:h=2,dense=int4",
                         "local-vote:h=2",
                         "signsgd-ef:momentum=0.9",
                         "local-ef:h=2",
                         "lion-cub:bits=1",
                         "lion-cub:bits=8,route=native",
                         "lion-cub:bits=3,tie=zero",
                         "lion-cub:scale=max",
                         "lion-cub:granularity=block,shared=no,scale=l2",
                         "lion-cub:granularity=block,shared=no,feedback=yes",
                         "lion-cub:feedback=yes,sync=none",
                         "lion-cub:shared=no,sync_format=3",
                         "lion-cub:route=native,feedback=yes",
                         "lion-cub:sync_schedule=exponential",
                         "local-vote:drift_feedback=0.9",
                         "local-vote:h=2,drift_feedback=0.5",
                         "local-vote:local=lion",
                         "diloco:h=3",
                         "dsm:h=2",
                         "local-vote:local=sgdm",
                         "dlion-vote:momentum_dtype=bfloat16",
                         "lion:momentum_dtype=bfloat16"});
  if (rules::has_blas())
    all.insert(all.end(), {"local-vote:local=muon", "local-muon:h=2", "turn-muon:turns=2",
                           "dlion-muon:split=w2=12*5+5", "muon:split=w1=2*32+1",
                           "local-vote:local=muon,split=w1=10+21"});
  return all;
}

class OnTheDevice : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Methods, OnTheDevice, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return testing::test_name(info.param); });

TEST_P(OnTheDevice, HasTheBitsOfTheHost) {
  for (const std::size_t dtype : {0, 1, 2}) {
    DeviceRun run = run_of(GetParam());
    run.first_dtype = dtype;
    expect_equal(run);
    run.world = dtype == 0 ? 1 : 2;
    run.one_by_one = true;
    expect_equal(run);
  }
}

TEST_P(OnTheDevice, Overlaps) {
  DeviceRun run = run_of(GetParam());
  run.options.overlap = true;
  run.one_by_one = true;
  expect_equal(run);
}

TEST_P(OnTheDevice, PlaysVirtualWorkers) {
  const DeviceRun run = run_of(GetParam());
  const Layout layout(testing::kTensors);
  const auto host = run_on_host(layout, run);
  const auto device = std::make_shared<TestDevice>();
  Model model(*device, layout, run.first_dtype);
  OptimizerOptions options = run.options;
  options.device = device;
  options.orthogonalise = testing::by_blas;
  VirtualWorkers optimizer(layout, options, {run.world});
  const std::size_t n = layout.tensors().size();
  for (std::int64_t step = 0; step < run.steps; ++step) {
    for (int worker = 0; worker < run.world; ++worker) {
      model.set_gradients(worker, step, run);
      const auto flags = std::make_unique<bool[]>(n);
      for (std::size_t t = 0; t < n; ++t) flags[t] = run.unused(worker, step, t);
      optimizer.hand_over(worker, model.params, model.grads, {flags.get(), n});
    }
    optimizer.step(model.params);
  }
  EXPECT_EQ(optimizer.hash(model.params), host[0].hash);
}

TEST_P(OnTheDevice, GoesOnFromASavedState) {
  DeviceRun run = run_of(GetParam());
  run.saved_after = 2;
  expect_equal(run);
}

TEST_P(OnTheDevice, SkipsAStepWhoseGradientIsNotFinite) {
  DeviceRun run = run_of(GetParam());
  run.options.non_finite = NonFinitePolicy::kSkip;
  run.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = rank == 1 && step == 1 && tensor == 1 && index == 1234;
    return bad ? std::numeric_limits<float>::infinity()
               : testing::gradient(rank, step, tensor, index);
  };
  expect_equal(run);
}

TEST(Device, TakesNodesAndWeights) {
  for (const char* method : {"dlion-vote", "dlion-avg"}) {
    DeviceRun run = run_of(method);
    run.world = 4;
    run.options.nodes = Nodes::of_size(4, 2);
    expect_equal(run);
    run.options.nodes = {};
    run.weights = {1, 3, 1, 2};
    expect_equal(run);
  }
}

TEST(Device, NamesTheTensorThatIsNotFinite) {
  const Layout layout(testing::kTensors);
  DeviceRun run = run_of("dlion-vote");
  run.grad = [](int rank, std::int64_t, std::size_t tensor, std::size_t index) {
    return rank == 1 && tensor == 1 && index == 7 ? std::numeric_limits<float>::quiet_NaN()
                                                  : testing::gradient(rank, 0, tensor, index);
  };
  const auto texts = testing::errors_of<NonFiniteGradient>(run.world, [&](Communicator& comm) {
    const auto device = std::make_shared<TestDevice>();
    Model model(*device, layout, 0);
    OptimizerOptions options = run.options;
    options.device = device;
    Optimizer optimizer(comm, layout, options);
    model.set_gradients(comm.rank(), 0, run);
    optimizer.step(model.params, model.grads);
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("step 1: NaN or Inf in the gradient of 'w1' on rank 1"), std::string::npos)
        << text;
  }
}

// Restores the parameters after a step that fails. Nothing that the step has begun changes them.
void expect_restored(const std::string& method, bool nan, int failing) {
  const Layout layout(testing::kTensors);
  DeviceRun run = run_of(method);
  run.options.bucket_coords = 512;  // buckets before that of the NaN
  run.grad = [nan](int, std::int64_t step, std::size_t tensor, std::size_t index) {
    return nan && step == 1 && tensor == 0 && index == 7
               ? std::numeric_limits<float>::quiet_NaN()
               : testing::gradient(0, step, tensor, index);
  };
  run_world(1, [&](Communicator& comm) {
    const auto device = std::make_shared<TestDevice>();
    Model model(*device, layout, 0), restored(*device, layout, 0);
    OptimizerOptions options = run.options;
    options.device = device;
    Optimizer optimizer(comm, layout, options);
    model.set_gradients(0, 0, run);
    optimizer.step(model.params, model.grads);
    model.set_gradients(0, 1, run);
    device->failing = failing;
    EXPECT_THROW(optimizer.step(model.params, model.grads), Error);
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      device->copy(model.params[t].data, restored.params[t].data,
                   model.params[t].n * size_of(model.params[t].dtype));
    }
    optimizer.hash(model.params);  // queues what is left
    EXPECT_EQ(model.bytes(), restored.bytes()) << method << ", launch " << failing;
  });
}

TEST(Device, NothingOfAFailedStepChangesRestoredParameters) {
  for (const char* method : {"dlion-vote", "adamw", "signsgd-ef"}) {
    expect_restored(method, true, 0);
    for (int launch = 1; launch <= 4; ++launch) expect_restored(method, false, launch);
  }
}

// What the device of the tests is for; test_device_test.cpp has more.
TEST(TestDevice, FindsAMissingCopyAndAMissingWait) {
  const Layout layout(testing::kTensors);
  using Planted = TestDevice::Planted;
  for (const Planted planted : {Planted::kNoCopyIn, Planted::kNoCopyOut, Planted::kNoWait}) {
    DeviceRun run = run_of("dlion-vote:route=sharded");
    run.planted = planted;
    const auto good = run_on_host(layout, run);
    std::vector<Result> got;
    try {
      got = run_all(layout, run);
    } catch (const Error&) {
      continue;  // a frame or a hash was refused: found
    }
    EXPECT_NE(got[0].hash, good[0].hash) << static_cast<int>(planted);
  }
}

}  // namespace
}  // namespace pride
