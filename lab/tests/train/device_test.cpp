// Runs whose method is on a GPU, which the tests play on the CPU. Oracle: the run whose method is
// on the host: losses, bytes, evaluations, parameters and checkpoints are equal.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "support/temp_folder.h"
#include "torch/fake_gpu.h"
#include "train/replica.h"
#include "train/small_run.h"
#include "train/step_times.h"
#include "train_names.h"

namespace pride::app::test::device_runs {
namespace {

constexpr const char* kOnTheGpu = "the method runs on cuda:0 (Fake A)";

// Its head is a tensor of more words than one, its body a column.
class Curve final : public Model {
 public:
  Curve()
      : body_(declare("body.weight", {40, 1}, Init::normal(1))),
        head_(declare("head.weight", {2, 40}, Init::normal(0.3))),
        bias_(declare("head.bias", {2}, Init::constant(0), false)) {}
  at::Tensor logits(const at::Tensor& input) override {
    const at::Tensor x = input.to(body_.scalar_type());
    return (at::matmul(at::tanh(at::matmul(x, body_.t())), head_.t()) + bias_).to(at::kFloat);
  }

 private:
  at::Tensor body_, head_, bias_;
};

class Numbers final : public Signs {
 public:
  using Signs::Signs;
  std::string name() const override { return "curve"; }
};

std::shared_ptr<Numbers> numbers() {
  const ModelMaker model{.name = "curve", .make = [] { return std::make_unique<Curve>(); }};
  return std::make_shared<Numbers>(model, /*border=*/0.8, /*scale=*/16);
}

TrainOptions run_of(const std::string& method, std::vector<std::string> method_options = {}) {
  TrainOptions options = small_run();
  options.method = method;
  options.method_options = std::move(method_options);
  options.steps = 6;
  return options;
}

struct Ran {
  std::string log;
  TrainResult result;
};

Ran ran(TrainOptions options, const std::string& run_on) {
  options.run_on = run_on;
  const auto log = std::make_shared<Log>();
  Observers observers = {log};
  TrainResult result = run(options, numbers(), observers);
  return {log->text, std::move(result)};
}

bool has_note(const TrainResult& result, const std::string& text) {
  return std::ranges::any_of(result.start.notes, [&](const std::string& note) {
    return note.find(text) != std::string::npos;
  });
}

void expect_same(const TrainOptions& options, const std::string& what) {
  const FakeGpu gpu;
  const Ran host = ran(options, "host"), device = ran(options, "device");
  EXPECT_EQ(device.log, host.log) << what;
  EXPECT_EQ(device.result.param_hash, host.result.param_hash) << what;
  EXPECT_EQ(device.result.start.state_floats, host.result.start.state_floats) << what;
  EXPECT_TRUE(has_note(device.result, kOnTheGpu)) << what;
  EXPECT_FALSE(has_note(host.result, kOnTheGpu)) << what;
}

TEST(DeviceRuns, HaveTheBitsOfTheHost) {
  for (const char* method : {"dlion-vote", "dlion-avg", "adamw", "signsgd-ef", "lion-cub"}) {
    expect_same(run_of(method), method);
  }
  for (const char* method : {"local-vote", "diloco"}) expect_same(run_of(method, {"h=2"}), method);
  TrainOptions groups = run_of("dlion-vote");
  groups.groups = "head.*: adamw lr=0.02";
  expect_same(groups, "two methods");
  TrainOptions narrow = run_of("dlion-vote");
  narrow.dtype = "bfloat16";
  expect_same(narrow, "bfloat16");
  narrow.overlap = true;
  narrow.accumulate = 2;
  expect_same(narrow, "bfloat16, overlapped");
}

TEST(DeviceRuns, ClipAndSkipAndSitOutAsTheHostDoes) {
  TrainOptions clipped = run_of("adamw");
  clipped.clip_norm = 0.05;
  expect_same(clipped, "local clipping");
  EXPECT_NE(ran(clipped, "host").result.param_hash, ran(run_of("adamw"), "host").result.param_hash)
      << "nothing was clipped";
  clipped.clip_norm = 0;
  clipped.clip_global_norm = 0.05;
  expect_same(clipped, "global clipping");
  TrainOptions absent = run_of("dlion-vote");
  absent.participation = 0.5;
  expect_same(absent, "workers that sit out");
  absent.absent = "stale";
  expect_same(absent, "and have no results");
}

TEST(DeviceRuns, PlayVirtualWorkers) {
  for (const char* method : {"dlion-vote", "local-vote"}) {
    TrainOptions options = run_of(method);
    options.virtual_workers = std::exchange(options.workers, 0);
    options.clip_norm = 0.05;
    expect_same(options, method);
  }
}

// From host to GPU and back: a checkpoint does not tell where it was made.
TEST(DeviceRuns, GoOnFromACheckpointOfTheHostAndBack) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    TrainOptions options = run_of("dlion-vote");
    options.dtype = dtype;
    const std::uint64_t whole = ran(options, "host").result.param_hash;
    const FakeGpu gpu;
    for (const auto& [first, then] : {std::pair{"host", "device"}, {"device", "host"}}) {
      const test::TempFolder folder;
      TrainOptions part = options;
      part.out = folder.path().string();
      part.save_every = 3;
      ran(part, first);
      part.resume = (folder.path() / "checkpoints" / "step-3").string();
      const Ran rest = ran(part, then);
      EXPECT_EQ(rest.result.start.step, 3);
      EXPECT_EQ(rest.result.param_hash, whole) << dtype << ", " << first << ", then " << then;
    }
  }
}

TEST(DeviceRuns, SayWhyTheMethodIsOnTheHost) {
  const FakeGpu gpu;
  for (const auto& [options, why] : {std::pair{run_of("dgc"), "dgc has no kernels for devices"},
                                     {run_of("diloco", {"h=2", "delay=1"}),
                                      "fragments or delay is not supported on a device"}}) {
    const TrainResult result = ran(options, "auto").result;
    EXPECT_TRUE(has_note(result, concat("copied to the host, where the method runs: ", why)) ||
                has_note(result, why))
        << options.method;
    expect_error<InvalidArgument>([&] { ran(options, "device"); }, {why});
  }
  EXPECT_TRUE(has_note(ran(run_of("lion"), "auto").result, kOnTheGpu));
  TrainOptions groups = run_of("lion");
  groups.groups = "head.*: dgc";
  EXPECT_TRUE(has_note(ran(groups, "auto").result, "where the method runs: dgc has no kernels"));
}

// Without a GPU there is nothing to say, and --run-on device is refused.
TEST(DeviceRuns, AreNotToBeHadOnTheCpu) {
  EXPECT_TRUE(ran(run_of("lion"), "auto").result.start.notes.empty());
  expect_error<InvalidArgument>([&] { ran(run_of("lion"), "device"); }, {"do not lie on one GPU"});
  TrainOptions options = run_of("lion");
  expect_error<InvalidArgument>([&] { ran(options, "gpu"); },
                                {"--run-on gpu", "auto, host, device"});
}

TEST(DeviceRuns, BenchStepsAreRight) {
  static const bool registered = [] {
    register_task(
        {.name = "curve", .data = "none", .default_batch = 4, .make = [](const TrainOptions&) {
           return std::make_unique<Numbers>(*numbers());
         }});
    return true;
  }();
  ASSERT_TRUE(registered);
  const FakeGpu gpu;
  StepBench bench{.methods = {"dlion-vote", "dgc"}, .seconds = 0.01, .least = 2};
  bench.options.task = "curve";
  run_world(2, [&](Communicator& comm) {
    const auto rows = bench_steps(comm, bench);
    ASSERT_EQ(rows.size(), 6u);
    for (std::size_t i = 2; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].wrong_ranks, 0) << rows[i].name << ", overlap: " << rows[i].overlap;
    }
  });
}

TEST(DeviceRuns, NormOfGradientsIsThatOfTheHost) {
  Curve model;
  model.initialise(1);
  model.logits(at::arange(6, at::kFloat).view({6, 1})).square().sum().backward();
  std::vector<ConstTensor> grads;
  for (const ModelParameter& p : model.parameters()) {
    const at::Tensor& g = p.tensor.grad();
    grads.emplace_back(g.data_ptr(), static_cast<std::size_t>(g.numel()), DType::kFloat32);
  }
  EXPECT_GT(norm(grads), 0);
  EXPECT_NEAR(gradient_norm(model), norm(grads), 1e-12 * norm(grads));
  EXPECT_EQ(gradient_norm(Curve()), 0) << "no gradients";
}

}  // namespace
}  // namespace pride::app::test::device_runs
