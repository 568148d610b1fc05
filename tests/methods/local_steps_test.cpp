// Local steps: against a scalar oracle, against the methods that they equal with h = 1 or with one
// worker, and the bytes of each step.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/local_steps_ref.h, loops over ranks without frames.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>

#include "methods/local_run.h"
#include "pride/registry.h"
#include "reference/local_steps_ref.h"
#include "rules/orthogonalise.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::local_steps_test {
namespace {

using reference::Hyper;
using reference::LocalHyper;
using reference::LocalOracle;
using testing::kLocalMethods;
using testing::kTensors;
using testing::options_of;
using testing::Training;
using testing::unused;

std::string outer_of(const std::string& method) {
  const std::map<std::string, std::string> outer = {{"local-vote", "dlion-vote"},
                                                    {"local-muon", "dlion-muon"},
                                                    {"local-ef", "signsgd-ef"},
                                                    {"dsm", "lion"},
                                                    {"diloco", "sgdm"}};
  return outer.at(method);
}

Hyper local_hyper(const std::string& rule) {
  Hyper hyper{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.125};
  if (rule == "adamw") hyper.beta2 = 0.999;
  return hyper;
}

struct Case {
  std::string method, rule;
  std::int64_t h;
  int world;
};

class LocalStepsOracle : public ::testing::TestWithParam<Case> {};

TEST_P(LocalStepsOracle, AgreesBitForBit) {
  const auto& [method, rule, h, world] = GetParam();
  const Layout layout(kTensors);
  const bool signs = method != "diloco";
  Training run{.world = world, .steps = 9};
  run.options.method = method;
  run.options.options = {{"h", std::to_string(h)}, {"local", rule}};
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.125}};
  run.options.seed = 11;
  run.options.bucket_coords = 256;
  run.unused = unused;
  const auto ranks = testing::train(layout, run);
  const Hyper outer = signs ? Hyper{.lr = 1, .beta1 = 0.95, .beta2 = 0.98}
                            : Hyper{.lr = 0.7, .beta1 = 0.9, .nesterov = true};
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const LocalHyper hyper{
        .rule = rule, .h = h, .local = local_hyper(rule), .outer = outer, .signs = signs};
    const LocalOracle oracle(outer_of(method), world, testing::initial_of(layout, t), hyper,
                             layout.tensors()[t].offset, 11);
    ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "");
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* method : {"local-vote", "dsm", "diloco"}) {  // the oracle's outer steps
    for (const char* rule : {"lion", "adamw", "sgdm"}) {
      for (const std::int64_t h : {1, 2, 4}) {
        for (const int world : {1, 2, 3, 5}) cases.push_back({method, rule, h, world});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, LocalStepsOracle, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return testing::test_name(
                               concat(c.method, "_", c.rule, "_h", c.h, "_N", c.world));
                         });

// Every outer form with local SGD of rate 1, without momentum, and an exchange in every step.
struct Twin {
  std::string local, plain;
  std::map<std::string, std::string> options;  // of both
};

TEST(LocalSteps, OfSgdAtRateOneInEveryStepAreTheOuterMethod) {
  for (const Twin& twin :
       {Twin{"local-vote", "dlion-vote", {}}, Twin{"local-vote", "dlion-vote", {{"tie", "zero"}}},
        Twin{"dsm", "lion", {}}}) {
    for (const int world : {1, 2, 3, 4}) {
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(concat(twin.local, ", N=", world, ", overlap ", overlap));
        Training plain{.world = world, .steps = 6};
        plain.options.method = twin.plain;
        plain.options.options = twin.options;
        plain.options.groups = {{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.125}};
        plain.options.bucket_coords = 128;
        plain.options.overlap = overlap;
        plain.unused = unused;
        Training local = plain;
        local.options.method = twin.local;
        local.options.groups = {{.lr = 1, .beta1 = 0, .weight_decay = 0.125}};
        local.options.options.insert({{"h", "1"},
                                      {"local", "sgdm"},
                                      {"outer_lr", "0.01"},
                                      {"outer_beta1", "0.9"},
                                      {"outer_beta2", "0.99"}});
        const Layout layout(kTensors);
        const auto one = testing::train(layout, plain), other = testing::train(layout, local);
        EXPECT_EQ(one[0].hash, other[0].hash);
        for (std::size_t r = 0; r < one.size(); ++r) {
          EXPECT_EQ(one[r].reports[5].bytes_sent, other[r].reports[5].bytes_sent);
        }
      }
    }
  }
}

// Local steps in plain loops, whose drifts another optimizer takes as gradients, give the same
// bits.
TEST(LocalSteps, AreStepsOfTheOuterMethodForDriftsMadeByHand) {
  constexpr double kLr = 0.015625;  // a power of two, so that no rounding differs
  constexpr std::int64_t kPeriod = 2;
  const Layout layout(kTensors);
  for (const std::string method : {"local-vote", "local-muon", "local-ef", "dsm", "diloco"}) {
    if (method == "local-muon" && !rules::has_blas()) continue;
    for (const int world : {1, 3}) {
      SCOPED_TRACE(concat(method, ", N=", world));
      const bool signs = method != "diloco" && method != "local-ef";
      std::vector<std::uint64_t> hashes[2];
      for (auto& h : hashes) h.resize(static_cast<std::size_t>(world));
      run_world(world, [&](Communicator& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        OptimizerOptions local{
            .method = method,
            .options = {{"h", std::to_string(kPeriod)}, {"local", "sgdm"}, {"outer_lr", "0.5"}},
            .groups = {{.lr = kLr, .beta1 = 0.5}},
            .bucket_coords = 512};
        if (method != "local-ef") local.options["outer_beta1"] = "0.75";
        if (signs) local.options["outer_beta2"] = "0.875";
        OptimizerOptions plain{.method = outer_of(method),
                               .groups = {{.lr = signs ? 0.5 * kLr : 0.5}},
                               .bucket_coords = 512};
        if (method != "local-ef") plain.groups[0].beta1 = 0.75;
        if (signs) plain.groups[0].beta2 = 0.875;
        if (method == "diloco") plain.options = {{"nesterov", "yes"}};
        Optimizer one(comm, layout, local), other(comm, layout, plain);
        FlatBuffer x(layout.flat_size()), z(layout.flat_size()), grads(layout.flat_size());
        FlatBuffer y(layout.flat_size()), m(layout.flat_size());
        testing::fill(layout, x, testing::initial);
        testing::fill(layout, z, testing::initial);
        for (std::int64_t step = 0; step < 4 * kPeriod; ++step) {
          testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
            return testing::gradient(comm.rank(), step, t, i);
          });
          one.step(x.span(), grads.span());
          for (std::size_t i = 0; i < y.size(); ++i) {
            m.span()[i] = 0.5F * m.span()[i] + grads.span()[i];
            y.span()[i] -= static_cast<float>(kLr) * m.span()[i];
          }
          if (step % kPeriod != kPeriod - 1) continue;
          const float factor = signs ? static_cast<float>(-1 / kLr) : -1.0F;
          for (float& d : y.span()) d *= factor;
          other.step(z.span(), y.span());
          std::ranges::fill(y.span(), 0.0F);
        }
        hashes[0][rank] = param_hash(layout, x.span());
        hashes[1][rank] = param_hash(layout, z.span());
      });
      EXPECT_EQ(hashes[0], hashes[1]);
    }
  }
}

// What an exchange does not apply comes back in the next one: over several exchanges the common
// parameters follow the mean drift to within the rest.
TEST(LocalSteps, WithFeedbackTheRestIsTheDriftThatNoExchangeApplied) {
  const Layout layout(kTensors);
  constexpr int kWorld = 3, kSteps = 8;
  constexpr double kRounding = 1e-5;
  for (const char* method : {"local-vote", "dsm"}) {
    std::vector<StateDict> states(kWorld);
    std::vector<std::vector<float>> common(kWorld);
    run_world(kWorld, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      Optimizer optimizer(comm, layout,
                          {.method = method,
                           .options = {{"h", "2"}, {"local", "sgdm"}, {"drift_feedback", "1"}},
                           .groups = {{.lr = 0.01, .beta1 = 0}}});
      FlatBuffer x(layout.flat_size()), grads(layout.flat_size());
      testing::fill(layout, x, testing::initial);
      for (int step = 0; step < kSteps; ++step) {
        testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
          return testing::gradient(comm.rank(), step, t, i);
        });
        optimizer.step(x.span(), grads.span());
      }
      optimizer.to_common(x.span());
      common[rank].assign(x.span().begin(), x.span().end());
      states[rank] = optimizer.save();
    });
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      const TensorSlot& slot = layout.tensors()[t];
      for (std::size_t i = 0; i < slot.n; ++i) {
        const std::size_t at = slot.offset + i;
        for (int r = 0; r < kWorld; ++r) {
          double drift = 0;
          for (int step = 0; step < kSteps; ++step)
            drift -= 0.01 * testing::gradient(r, step, t, i);
          const double moved = common[0][at] - static_cast<double>(testing::initial(t, i));
          const StateDict& state = states[static_cast<std::size_t>(r)];
          const float rest = state.tensors.at("rest/" + slot.spec.name).values[i];
          ASSERT_NEAR(rest, drift - moved, kRounding)
              << method << ", " << slot.spec.name << ", rank " << r;
        }
      }
    }
  }
}

// FedAvg: x = the mean of the workers' parameters after h local steps.
TEST(LocalSteps, FedAvgIsTheMeanOfTheWorkersParameters) {
  const Layout layout(kTensors);
  constexpr int kWorld = 3, kSteps = 4;
  constexpr double kRounding = 1e-5;  // of sums in another order
  Training run{.world = kWorld, .steps = kSteps};
  run.options.method = "diloco";
  run.options.options = {
      {"h", "4"}, {"local", "sgdm"}, {"outer_lr", "1"}, {"outer_beta1", "0"}, {"nesterov", "no"}};
  run.options.groups = {{.lr = 0.01, .beta1 = 0.5}};
  const auto ranks = testing::train(layout, run);
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    for (std::size_t i = 0; i < slot.n; ++i) {
      double mean = 0;
      for (int r = 0; r < kWorld; ++r) {
        double x = testing::initial(t, i), m = 0;
        for (int step = 0; step < kSteps; ++step) {
          m = 0.5 * m + testing::gradient(r, step, t, i);
          x -= 0.01 * m;
        }
        mean += x / kWorld;
      }
      ASSERT_NEAR(ranks[1].params[slot.offset + i], mean, kRounding) << slot.spec.name;
    }
  }
}

// One worker that takes over its own drift is the serial rule, but for the sums' rounding.
TEST(LocalSteps, AloneAreTheSerialRule) {
  const Layout layout(kTensors);
  constexpr double kRounding = 1e-5;
  for (const char* rule : {"lion", "adamw", "sgdm"}) {
    Training serial{.world = 1, .steps = 8};
    serial.options.method = rule;
    serial.options.groups = {{.lr = 0.01}};
    Training local = serial;
    local.options.method = "diloco";
    local.options.options = {
        {"h", "4"}, {"local", rule}, {"outer_lr", "1"}, {"outer_beta1", "0"}, {"nesterov", "no"}};
    const auto one = testing::train(layout, serial), other = testing::train(layout, local);
    for (std::size_t i = 0; i < one[0].params.size(); ++i) {
      ASSERT_NEAR(one[0].params[i], other[0].params[i], kRounding) << rule << ", " << i;
    }
  }
}

TEST(LocalSteps, SendNothingBetweenExchangesAndTheirCostInThem) {
  const Layout layout(kTensors);
  for (const char* method : kLocalMethods) {
    for (const int world : {1, 2, 4}) {
      SCOPED_TRACE(concat(method, " N=", world));
      Training run{.world = world, .steps = 9};
      run.options.method = method;
      run.options.options = {{"h", "4"}};
      run.options.bucket_coords = 512;
      const auto ranks = testing::train(layout, run);
      for (int r = 0; r < world; ++r) {
        const auto& rank = ranks[static_cast<std::size_t>(r)];
        std::uint64_t sent = 0;
        for (const StepReport& report : rank.reports) {
          const bool exchange = report.step % 4 == 3;
          EXPECT_EQ(report.bytes_sent, rank.costs[static_cast<std::size_t>(report.step)].bytes());
          EXPECT_EQ(report.bytes_sent > 0, exchange && world > 1) << report.step;
          EXPECT_EQ(report.messages_sent > 0, exchange && world > 1) << report.step;
          if (report.step < 4) sent += report.bytes_sent;
        }
        const Cost mean = method_cost(method, layout,
                                      {.options = {{"h", "4"}},
                                       .world = world,
                                       .rank = r,
                                       .step = 2,
                                       .mean = true,
                                       .bucket_coords = 512});
        EXPECT_GE(4 * mean.bytes(), sent);
        EXPECT_LE(4 * mean.bytes(), sent + 8);  // both directions rounded up
      }
    }
  }
}

TEST(LocalSteps, CostTheirShareOfTheBits) {
  const MethodInfo info = method_info("local-vote", 4, {{"h", "32"}});
  EXPECT_EQ(info.period, 32);
  EXPECT_DOUBLE_EQ(info.bits_up, 1.0 / 32);
  EXPECT_DOUBLE_EQ(info.bits_down, 1.0 / 32);
  EXPECT_DOUBLE_EQ(method_info("diloco", 4, {{"h", "64"}}).bits_up, 0.5);
  // of an exchange, copied from a device and to it: a ternary vote has two bits
  EXPECT_EQ(method_info("local-vote", 4, {{"tie", "zero"}}).link_bits_down, 2);
  EXPECT_EQ(method_info("local-vote", 4).link_bits_down, 1);
  const Layout layout({{"w", {1 << 20}}});
  const std::map<std::string, std::string> options = {{"h", "32"}};
  for (const auto& route : bucket_routes("local-vote", layout, {.options = options})) {
    EXPECT_EQ(route.name, "sharded");
  }
}

TEST(LocalSteps, ATensorThatHasDriftedTakesPartWithoutAGradient) {
  const Layout layout(kTensors);
  for (const char* method : {"local-vote", "diloco"}) {
    Training run{.world = 3, .steps = 6};
    run.options.method = method;
    run.options.options = {{"h", "2"}};
    if (std::string(method) != "diloco") run.options.options["route"] = "sharded";
    run.unused = [](int rank, std::int64_t step, std::size_t tensor) {
      return tensor == 3 && rank == 1 && step % 2 == 1;
    };
    const auto ranks = testing::train(layout, run);
    EXPECT_EQ(ranks[0].hash, ranks[1].hash) << method;
  }
}

TEST(LocalSteps, AHashChangesNoState) {
  const Layout layout(kTensors);
  run_world(1, [&](Communicator& comm) {
    const Optimizer optimizer(comm, layout, options_of("local-vote"));
    FlatBuffer x(layout.flat_size());
    testing::fill(layout, x, [](std::size_t, std::size_t i) { return static_cast<float>(i); });
    const StateDict before = optimizer.save();
    optimizer.hash(x.span());
    for (const auto& [name, tensor] : optimizer.save().tensors) {
      EXPECT_EQ(tensor.values, before.tensors.at(name).values) << name;
    }
  });
}

TEST(LocalSteps, TensorsAreAddedInTheMiddleOfAPhase) {
  const Layout layout(kTensors);
  std::array<std::uint64_t, 2> hashes{};
  run_world(2, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, options_of("local-vote"));
    FlatBuffer x(layout.flat_size());
    testing::train(optimizer, comm, x, 0, 2);
    optimizer.add({{"more", {70}}});
    FlatBuffer grown(optimizer.layout().flat_size());
    std::ranges::copy(x.span(), grown.span().begin());
    testing::fill(optimizer.layout(), grown, [&](std::size_t t, std::size_t i) {
      const std::size_t at = optimizer.layout().tensors()[t].offset + i;
      return t < kTensors.size() ? grown.span()[at] : 0.5F;
    });
    // of the common parameters, and of those that were added
    hashes[static_cast<std::size_t>(comm.rank())] = optimizer.hash(grown.span());
    testing::train(optimizer, comm, grown, 2, 3);
    optimizer.to_common(grown.span());
    const TensorSlot& more = optimizer.layout().tensors().back();
    EXPECT_EQ(grown.span()[more.offset + 3], 0.5F);
    EXPECT_EQ(grown.span()[0], 0.0F);
  });
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(LocalSteps, RefuseOptionsOutOfRange) {
  const auto refuses = [](std::map<std::string, std::string> options, const std::string& text) {
    texts::expect_error<InvalidArgument>([&] { state_of("local-vote", Layout(kTensors), options); },
                                         {text});
  };
  refuses({{"h", "0"}}, "local-vote: option h = '0'");
  refuses({{"local", "adagrad"}}, "choose lion, adamw, sgdm or muon");
  refuses({{"outer_beta1", "1"}}, "outer_beta1");
  refuses({{"outer_lr", "-1"}}, "outer_lr");
}

}  // namespace
}  // namespace pride::local_steps_test
