// Optimizer::scale_next_step(): the factor is read from the memory of the gradients, and a skipped
// step is not counted.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>

#include "pride/error.h"
#include "pride/optimizer.h"
#include "pride/registry.h"
#include "rules/orthogonalise.h"
#include "support/test_device.h"
#include "support/training.h"

namespace pride::loss_scale_test {
namespace {

constexpr float kFactor = 0.7f;  // its products are rounded

struct Scaled {
  OptimizerOptions options = {};
  int world = 2;
  int steps = 3;
  bool scaled = true;  // or set_gradient_factor() alone
  bool on_device = false;
  int bad = -1;            // the step in which rank 1 has an infinite gradient
  bool leave_out = false;  // that step
};

struct Result {
  std::vector<float> params;
  StateDict state;
  std::vector<StepReport> reports;
  std::int64_t steps_done = 0;
};

// Where a step reads gradients and the factor: on the host, or a device of the tests.
class Tensors {
 public:
  Tensors(std::size_t n, bool on_device) : host_(n), grad_(n) {
    if (!on_device) return;
    device = std::make_shared<testing::TestDevice>();
    params_.emplace(*device, host_.span());
    grads_.emplace(*device, grad_.span());
    factor_.emplace(*device, std::span(&kFactor, 1));
  }
  FlatBuffer& grad() { return grad_; }  // filled, then used by step()
  StepReport step(Optimizer& optimizer) {
    if (!device) return optimizer.step(host_.span(), grad_.span());
    grads_->put(grad_.span());
    return optimizer.step(params_->span(), grads_->span());
  }
  const float* factor() const { return device ? factor_->data() : &kFactor; }
  std::vector<float> values() const {
    return device ? params_->get() : std::vector(host_.span().begin(), host_.span().end());
  }
  std::shared_ptr<testing::TestDevice> device = nullptr;

 private:
  FlatBuffer host_, grad_;
  std::optional<testing::OnDevice<float>> params_, grads_, factor_;
};

Result train(Communicator& comm, const Layout& layout, const Scaled& run) {
  Result result;
  Tensors tensors(layout.flat_size(), run.on_device);
  OptimizerOptions options = run.options;
  options.device = tensors.device;
  Optimizer optimizer(comm, layout, options);
  optimizer.set_gradient_factor(run.scaled ? -1 : -kFactor);
  for (int step = 0; step < run.steps; ++step) {
    if (step == run.bad && run.leave_out) continue;
    testing::fill(layout, tensors.grad(), [&](std::size_t t, std::size_t i) {
      return testing::gradient(comm.rank(), step, t, i);
    });
    if (step == run.bad && comm.rank() == 1) {
      tensors.grad().span()[layout.tensors()[1].offset + 70] =
          std::numeric_limits<float>::infinity();
    }
    if (run.scaled) optimizer.scale_next_step(tensors.factor());
    result.reports.push_back(tensors.step(optimizer));
  }
  result.params = tensors.values();
  result.state = optimizer.save();
  result.steps_done = optimizer.steps_done();
  return result;
}

std::vector<Result> train(const Scaled& run) {
  const Layout layout(testing::kTensors);
  std::vector<Result> results(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    results[static_cast<std::size_t>(comm.rank())] = train(comm, layout, run);
  });
  return results;
}

// Those without local steps.
std::vector<std::string> methods() {
  std::vector<std::string> all = testing::method_variants();
  std::erase_if(all, [](const std::string& method) {
    return method_info(method.substr(0, method.find(':')), 1).period > 1;
  });
  return all;
}

Scaled run_of(const std::string& method) {
  Scaled run;
  testing::set_method(run.options, method);
  run.options.bucket_coords = 256;
  run.options.groups[0].weight_decay = 0.1;
  return run;
}

void expect_same(const std::vector<Result>& got, const std::vector<Result>& expected,
                 const std::string& method) {
  for (std::size_t r = 0; r < got.size(); ++r) {
    EXPECT_EQ(got[r].params, expected[r].params) << method;
    EXPECT_TRUE(testing::same(got[r].state, expected[r].state)) << method;
  }
}

TEST(LossScale, MultipliesAsTheGradientFactorDoes) {
  for (const std::string& method : methods()) {
    Scaled run = run_of(method);
    const auto scaled = train(run);
    run.scaled = false;
    expect_same(scaled, train(run), method);
  }
}

TEST(LossScale, IsReadOnTheDevice) {
  for (const char* method : {"dlion-vote", "adamw", "lion-cub", "signsgd-ef"}) {
    Scaled run = run_of(method);
    const auto host = train(run);
    run.on_device = true;
    expect_same(train(run), host, method);
  }
}

TEST(LossScale, SkipsAStepThatIsNotFiniteAndDoesNotCountIt) {
  const std::string_view untouched[] = {
      "adamw",      "sgdm",        "lion",     "muon",
      "signsgd-ef", "onebit-adam", "terngrad", "lion:momentum_dtype=bfloat16"};
  for (const std::string& method : methods()) {
    for (const bool overlap : {false, true}) {
      Scaled run = run_of(method);
      run.options.overlap = overlap;
      run.steps = 4;
      run.bad = 1;
      const auto got = train(run);
      for (const Result& of_rank : got) {
        EXPECT_EQ(of_rank.params, got[0].params) << method;
        EXPECT_EQ(of_rank.steps_done, 3) << method;
        for (std::size_t step = 0; step < 4; ++step) {
          EXPECT_EQ(of_rank.reports[step].skipped, step == 1) << method;
        }
        EXPECT_EQ(of_rank.reports[1].skip_reason,
                  "step 2: NaN or Inf in the gradient of 'w1' on rank 1")
            << method;
      }
      if (std::ranges::find(untouched, method) == std::end(untouched)) continue;
      run.leave_out = true;
      expect_same(got, train(run), method);
    }
  }
}

TEST(LossScale, IsOfTheNextStepAlone) {
  const Layout layout({{"a", {70}}});
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    if (comm.rank() == 0) g.span()[3] = std::numeric_limits<float>::quiet_NaN();
    optimizer.scale_next_step(nullptr);
    EXPECT_TRUE(optimizer.step(x.span(), g.span()).skipped);
    EXPECT_EQ(std::ranges::count(x.span(), 0.0f), static_cast<std::ptrdiff_t>(x.span().size()));
    EXPECT_THROW(optimizer.step(x.span(), g.span()), NonFiniteGradient);
  });
}

// A skipped step is repeated under its number, with other tensors: of two matrices the first is bad
// at first, then the second, which comes first.
TEST(LossScale, FindsEachFaultOfARepeatedStep) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  const Layout layout({{"a", {8, 8}}, {"b", {8, 8}}});
  std::vector<float> x(128), bad(64, std::numeric_limits<float>::infinity()), good(64, 1);
  for (const char* method : {"dlion-muon", "turn-muon"}) {
    run_world(1, [&](Communicator& comm) {
      Optimizer optimizer(comm, layout, {.method = method});
      const std::array params = {Tensor(x.data(), 64, DType::kFloat32),
                                 Tensor(x.data() + 64, 64, DType::kFloat32)};
      const auto step = [&](const std::vector<float>* a, const std::vector<float>& b) {
        optimizer.scale_next_step(nullptr);
        optimizer.begin_step(params);
        if (a == nullptr) {
          optimizer.gradient_ready(0, ConstTensor(bad.data(), 64, DType::kFloat32));
          optimizer.gradient_ready(1, ConstTensor(nullptr, 64, DType::kFloat32));
        } else {
          optimizer.gradient_ready(1, ConstTensor(b.data(), 64, DType::kFloat32));
          optimizer.gradient_ready(0, ConstTensor(a->data(), 64, DType::kFloat32));
        }
        return optimizer.finish_step().skipped;
      };
      EXPECT_TRUE(step(nullptr, good)) << method;
      EXPECT_TRUE(step(&good, bad)) << method;
      EXPECT_FALSE(step(&good, good)) << method;
    });
  }
}

TEST(LossScale, StaysForTheNextStepThatBegins) {
  const Layout layout({{"a", {70}}});
  run_world(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, {});
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    g.span()[3] = std::numeric_limits<float>::quiet_NaN();
    optimizer.scale_next_step(nullptr);
    optimizer.begin_step(x.span(), g.span());
    EXPECT_THROW(optimizer.begin_step(x.span(), g.span()), InvalidArgument);
    optimizer.gradient_ready(0);
    EXPECT_TRUE(optimizer.finish_step().skipped);

    optimizer.scale_next_step(nullptr);
    optimizer.add({{"b", {3}}});
    FlatBuffer more(optimizer.layout().flat_size()), grads(more.span().size());
    grads.span()[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(optimizer.step(more.span(), grads.span()).skipped);
  });
}

TEST(LossScale, ModelParallelRanksSkipTheStepTooIfOneIsNotFinite) {
  const Layout layout({{"a", {70}}});
  int calls = 0;
  run_world(1, [&](Communicator& comm) {
    OptimizerOptions options;
    options.model_parallel_sum = [&](std::span<double> values) {
      ++calls;
      values[1] += 1;  // of another model-parallel rank
    };
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    optimizer.scale_next_step(nullptr);
    EXPECT_EQ(optimizer.step(x.span(), g.span()).skip_reason,
              "step 1: NaN or Inf in a gradient of another model-parallel rank");
    EXPECT_FALSE(optimizer.step(x.span(), g.span()).skipped);
    EXPECT_EQ(optimizer.steps_done(), 1);
  });
  EXPECT_EQ(calls, 1) << "a step that is not held calls it";
}

std::string refusal(OptimizerOptions options, bool in_step = false) {
  const Layout layout({{"a", {70}}});
  return testing::errors_of<InvalidArgument>(1, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    if (in_step) optimizer.begin_step(x.span(), g.span());
    optimizer.scale_next_step(nullptr);
  })[0];
}

TEST(LossScale, RefusesWhatOtherRanksWouldNotSee) {
  const OptimizerOptions local{.method = "local-vote", .options = {{"h", "1"}}};
  EXPECT_NE(refusal(local).find("scale_next_step() is not supported with local-vote"),
            std::string::npos);
  EXPECT_NE(refusal({}, true).find("in the middle of a step"), std::string::npos);
}

}  // namespace
}  // namespace pride::loss_scale_test
