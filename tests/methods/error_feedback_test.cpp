// signsgd-ef and onebit-adam, real exchange included, against the scalar oracle: bit for bit; their
// cost, and dropped steps.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/error_feedback_ref.h, which loops over ranks without frames.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "pride/error.h"
#include "pride/registry.h"
#include "reference/error_feedback_ref.h"
#include "support/training.h"

namespace pride::error_feedback_test {
namespace {

using reference::ErrorFeedbackOracle;
using reference::Hyper;
using testing::Training;

// More than three blocks of 4096 in one tensor, others that begin and end inside blocks.
const std::vector<TensorSpec> kTensors = {{"first", {50, 7}},
                                          {"large", {131, 97}},
                                          {"bias", {33}, 1},
                                          {"scalar", {}, 1},
                                          {"rows", {130, 40}, 1}};

// Rank 1 never has "bias"; no rank has "scalar" at steps 1 and 3; "large" is missing at times.
bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 2 && rank == 1) || (tensor == 3 && step % 2 == 1) ||
         (tensor == 1 && (rank + step) % 4 == 3);
}

Training run_of(const std::string& method, int world, int steps) {
  Training run{.world = world, .steps = steps};
  run.options.method = method;
  if (method == "onebit-adam") run.options.options = {{"freeze_steps", "2"}};
  // with and without, by the number of workers
  if (method == "signsgd-ef") run.options.options = {{"momentum", world % 2 == 0 ? "0.9" : "0"}};
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}, {.lr = 0.003, .weight_decay = 0.0}};
  run.options.seed = 99;
  run.options.bucket_coords = 10'000;
  run.unused = unused;
  return run;
}

struct Case {
  std::string method;
  int world;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.method << " N=" << c.world;
  }
};

class ErrorFeedback : public ::testing::TestWithParam<Case> {
 protected:
  Training run(int steps) const { return run_of(GetParam().method, GetParam().world, steps); }
};

ErrorFeedbackOracle oracle_of(const Case& c, const Layout& layout, std::size_t tensor) {
  const TensorSlot& slot = layout.tensors()[tensor];
  const bool group1 = slot.spec.group == 1;
  const bool adam = c.method == "onebit-adam";
  const Hyper hyper{.lr = group1 ? 0.003 : 0.01,
                    .beta1 = adam || c.world % 2 == 0 ? 0.9 : 0.0,
                    .beta2 = 0.999,
                    .weight_decay = group1 ? 0.0 : 0.1};
  return {adam ? ErrorFeedbackOracle::Kind::kOneBitAdam : ErrorFeedbackOracle::Kind::kSignSgd,
          c.world,
          testing::initial_of(layout, tensor),
          hyper,
          slot.offset,
          99,
          adam ? 2 : 0};
}

TEST_P(ErrorFeedback, AgreesWithTheOracleBitForBit) {
  const Layout layout(kTensors);
  const Training run = this->run(7);
  const auto ranks = testing::train(layout, run);
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    ASSERT_EQ(testing::difference(oracle_of(GetParam(), layout, t), layout, t, run, ranks), "");
  }
}

// In both stages of onebit-adam.
TEST_P(ErrorFeedback, CostEqualsCountedBytes) {
  const Training run = this->run(4);
  run_world(run.world, [&](Communicator& comm) {
    const Layout layout(kTensors);
    Optimizer optimizer(comm, layout, run.options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    for (std::int64_t step = 0; step < run.steps; ++step) {
      const StepReport report = optimizer.step(x.span(), g.span());
      EXPECT_TRUE(optimizer.cost(step).exact);
      EXPECT_EQ(report.bytes_sent, optimizer.cost(step).bytes()) << "step " << step;
    }
    if (GetParam().method == "onebit-adam" && run.world > 1) {
      EXPECT_LT(10 * optimizer.cost(2).bytes(), optimizer.cost(1).bytes());
    }
  });
}

// One more step with this rank's gradients, in which rank 1 has `bad` at one coordinate.
StepReport step_with(Optimizer& optimizer, Communicator& comm, FlatBuffer& x, float bad) {
  const Layout& layout = optimizer.layout();
  FlatBuffer g(layout.flat_size());
  testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
    return testing::gradient(comm.rank(), optimizer.steps_done(), t, i);
  });
  if (comm.rank() == comm.size() - 1 && bad != 0) g.span()[9000] = bad;
  return optimizer.step(x.span(), g.span());
}

void expect_same_state(const StateDict& got, const StateDict& want, const std::string& when) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, tensor] : want.tensors) {
    const auto& values = got.tensors.at(name).values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]),
                std::bit_cast<std::uint32_t>(tensor.values[i]))
          << when << ": " << name << "[" << i << "]";
    }
  }
}

TEST_P(ErrorFeedback, ADroppedStepChangesNoBitOfStateOrParameters) {
  for (const bool overlap : {false, true}) {
    Training run = this->run(0);
    run.options.overlap = overlap;
    run.options.non_finite = NonFinitePolicy::kSkip;
    run.options.bucket_coords = 4096;
    run_world(run.world, [&](Communicator& comm) {
      const Layout layout(kTensors);
      Optimizer optimizer(comm, layout, run.options);
      FlatBuffer x(layout.flat_size());
      for (int step = 0; step < 6; ++step) {
        const StateDict before = optimizer.save();
        const std::uint64_t hash = param_hash(layout, x.span());
        const float bad = step % 2 == 1 ? std::numeric_limits<float>::infinity() : 0;
        const StepReport report = step_with(optimizer, comm, x, bad);
        ASSERT_EQ(report.skipped, bad != 0);
        if (bad == 0) continue;
        EXPECT_EQ(param_hash(layout, x.span()), hash);
        expect_same_state(optimizer.save(), before, concat("step ", step));
      }
    });
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const char* method : {"signsgd-ef", "onebit-adam"}) cases.push_back({method, world});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ErrorFeedback, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) {
                           std::string name =
                               info.param.method + "_" + std::to_string(info.param.world);
                           for (char& ch : name) ch = ch == '-' ? '_' : ch;
                           return name;
                         });

}  // namespace
}  // namespace pride::error_feedback_test
