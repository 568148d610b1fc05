// Lion Cub: the scalar oracle bit for bit, its forms and limits, and what synchronisation does.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/lion_cub_ref.h, without synchronisation, which has tests of its own.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "pride/error.h"
#include "pride/registry.h"
#include "reference/lion_cub_ref.h"
#include "support/training.h"

namespace pride {
namespace {

using Options = std::map<std::string, std::string>;
using reference::CubOracle;
using reference::CubRules;
using testing::Training;

const std::vector<TensorSpec> kTensors = {
    {"embedding", {40, 16}, 0, true},
    {"weight", {330, 37}},
    {"bias", {33}},
    {"scale", {}},
    {"head", {130, 5}},
    {"frozen", {70}},
};

bool absent(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 2 && rank == 1) || (tensor == 3 && step == 1);
}
// "frozen" has gradients of zero, rows 20-39 of the embedding are touched by nobody.
float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  if (tensor == 5 || (tensor == 0 && index >= 20 * 16)) return 0;
  return testing::gradient(rank, step, tensor, index);
}

Training training(int world, const Options& options, int steps = 4) {
  Training run{.world = world, .steps = steps};
  run.options.method = "lion-cub";
  run.options.options = {{"granularity", "block"}, {"shared", "no"}, {"sync", "none"}};
  for (const auto& [name, value] : options) run.options.options[name] = value;
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
  run.options.seed = 99;
  run.options.bucket_coords = 4096;
  run.absent = absent;
  run.grad = gradient;
  return run;
}

// Parameters of all ranks, and that they are the same.
std::vector<float> params_of(const Layout& layout, const Training& run) {
  const auto ranks = testing::train(layout, run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
  return ranks[0].params;
}

void expect_oracle(int world, const Options& options, const CubRules& rules) {
  const Layout layout(kTensors);
  const Training run = training(world, options);
  const auto got = params_of(layout, run);
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    std::vector<float> x(slot.n);
    for (std::size_t i = 0; i < slot.n; ++i) x[i] = testing::initial(t, i);
    const auto& shape = slot.spec.shape;
    const std::size_t row = shape.size() < 2 ? slot.n : slot.n / static_cast<std::size_t>(shape[0]);
    CubOracle oracle(rules, world, x, slot.offset, row, slot.spec.sparse);
    for (std::int64_t step = 0; step < run.steps; ++step) {
      std::vector<std::vector<float>> grads;
      std::vector<bool> missing;
      for (int r = 0; r < world; ++r) {
        missing.push_back(absent(r, step, t));
        auto& g = grads.emplace_back(slot.n);
        for (std::size_t i = 0; i < slot.n; ++i) g[i] = gradient(r, step, t, i);
      }
      oracle.step(grads, missing);
    }
    for (std::size_t i = 0; i < slot.n; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[slot.offset + i]),
                std::bit_cast<std::uint32_t>(oracle.x()[i]))
          << slot.spec.name << "[" << i << "] N=" << world << ": got " << got[slot.offset + i]
          << ", oracle " << oracle.x()[i];
    }
  }
}

CubRules rules_of(const Options& options) {
  CubRules rules;
  rules.seed = 99;
  rules.decay = static_cast<float>(1 - 0.01 * 0.1);
  rules.beta1c = static_cast<float>(1 - 0.9);
  rules.beta2c = static_cast<float>(1 - 0.99);
  for (const auto& [name, value] : options) {
    if (name == "bits") rules.bits = std::stoi(value);
    if (name == "scale") rules.scale = value;
    if (name == "granularity") rules.granularity = value;
    if (name == "quantile") rules.quantile = std::stod(value);
    if (name == "tie") rules.tie_zero = value == "zero";
    if (name == "rounding") rules.stochastic = value == "stochastic";
    if (name == "shared") rules.shared = value == "yes";
    if (name == "feedback") rules.feedback = value == "yes";
  }
  return rules;
}

class LionCubOracle : public ::testing::TestWithParam<Options> {};

TEST_P(LionCubOracle, AgreesBitForBit) {
  for (const int world : {1, 2, 3, 4, 5}) {
    for (const char* form : {"sharded", "direct"}) {
      Options options = GetParam();
      options["form"] = form;
      SCOPED_TRACE(form);
      expect_oracle(world, options, rules_of(options));
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Options>& info) {
  std::string name = "case";
  for (const auto& [key, value] : info.param) name += "_" + key + value;
  std::erase_if(
      name, [](char c) { return c != '_' && std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bits, LionCubOracle,
                         ::testing::Values(Options{{"bits", "2"}}, Options{{"bits", "3"}},
                                           Options{{"bits", "4"}}, Options{{"bits", "5"}},
                                           Options{{"bits", "6"}}, Options{{"bits", "7"}},
                                           Options{{"bits", "8"}}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    Quantisers, LionCubOracle,
    ::testing::Values(Options{{"scale", "max"}}, Options{{"scale", "l2"}, {"tie", "zero"}},
                      Options{{"scale", "quantile"}, {"quantile", "0.9"}},
                      Options{{"granularity", "tensor"}}, Options{{"granularity", "row"}},
                      Options{{"granularity", "tensor"}, {"shared", "yes"}, {"scale", "max"}},
                      Options{
                          {"granularity", "row"}, {"shared", "yes"}, {"rounding", "stochastic"}},
                      Options{{"rounding", "stochastic"}, {"bits", "2"}},
                      Options{{"feedback", "yes"}, {"bits", "2"}},
                      Options{{"feedback", "yes"}, {"granularity", "row"}, {"bits", "3"}}),
    name_of);

// p = 1 without synchronisation is Distributed Lion, of either tie rule.
TEST(LionCub, OfOneBitIsTheMajorityVote) {
  const Layout layout(kTensors);
  for (const char* tie : {"hash", "zero"}) {
    for (const int world : {1, 2, 3, 4, 8}) {
      const auto cub = params_of(layout, training(world, {{"bits", "1"}, {"tie", tie}}));
      Training vote = training(world, {{"tie", tie}});
      vote.options.method = "dlion-vote";
      vote.options.options = {{"tie", tie}};
      EXPECT_EQ(cub, params_of(layout, vote)) << "N=" << world << " tie " << tie;
    }
  }
}

// --- Levels against the true mean. --------------------------------------------------------------

// Share of coordinates where the vote is not the sign of the mean of the blends, after one step
// from zero momentum: the blend is a tenth of the gradient.
double disagreement(const Options& options, int world) {
  const Layout layout({{"w", {64, 256}}});
  Training run{.world = world, .steps = 1};
  run.options.method = "lion-cub";
  run.options.options = options;
  run.options.options["sync"] = "none";
  run.options.groups = {{.lr = 1.0}};
  // ranks whose gradients differ in size as well
  run.grad = [](int rank, std::int64_t, std::size_t tensor, std::size_t i) {
    return testing::gradient(rank, 5, tensor, i) * static_cast<float>(1 + rank % 3) + 0.01f;
  };
  const auto params = params_of(layout, run);
  const TensorSlot& slot = layout.tensors()[0];
  double wrong = 0;
  for (std::size_t i = 0; i < slot.n; ++i) {
    double mean = 0;
    for (int r = 0; r < world; ++r) mean += double{run.grad(r, 0, 0, i)};
    const double moved = double{testing::initial(0, i)} - double{params[slot.offset + i]};
    wrong += moved * mean < 0 ? 1 : 0;
  }
  return wrong / static_cast<double>(slot.n);
}

// With a shared scale a level is the blend, rounded; so the vote tends to the sign of the mean.
TEST(LionCub, VotesTendToTheSignOfTheMeanWithSharedScales) {
  for (const int world : {4, 5, 16}) {
    double before = 1;
    for (int bits = 2; bits <= 8; ++bits) {
      const double now = disagreement({{"bits", std::to_string(bits)},
                                       {"scale", "max"},
                                       {"granularity", "tensor"},
                                       {"shared", "yes"}},
                                      world);
      EXPECT_LT(now, before) << bits << " bits, N=" << world;
      before = now;
    }
    EXPECT_LT(before, 0.01) << "N=" << world;
    EXPECT_GT(disagreement({{"bits", "1"}}, world), 5 * before) << "N=" << world;
  }
}

// A rank's own scale makes a vote of relative magnitudes: ranks whose gradients are larger have no
// more weight, so more bits do not lead to the sign of the mean.
TEST(LionCub, OwnScalesAreAnotherLimit) {
  const double own = disagreement(
      {{"bits", "8"}, {"granularity", "tensor"}, {"scale", "max"}, {"shared", "no"}}, 4);
  const double shared = disagreement(
      {{"bits", "8"}, {"granularity", "tensor"}, {"scale", "max"}, {"shared", "yes"}}, 4);
  EXPECT_GT(own, 5 * shared);
}

// --- Zeros. -------------------------------------------------------------------------------------

TEST(LionCub, ZerosStayZeroWithTheTernaryAnswer) {
  const Layout layout({{"zero", {200}}, {"w", {200}}});
  for (const int world : {1, 2, 3, 4}) {
    for (const char* bits : {"2", "4", "8"}) {
      Training run = training(world, {{"bits", bits}, {"tie", "zero"}});
      run.options.groups = {{.lr = 0.01}};
      run.absent = nullptr;
      run.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t i) {
        return tensor == 0 ? 0.0f : testing::gradient(rank, step, tensor, i);
      };
      const auto params = params_of(layout, run);
      for (std::size_t i = 0; i < 200; ++i) EXPECT_EQ(params[i], testing::initial(0, i));
    }
  }
}

// --- Synchronisation. ---------------------------------------------------------------------------

// Momenta of every rank after a run, by tensor name.
std::vector<StateDict> states_of(const Layout& layout, const Training& run) {
  std::vector<StateDict> states(static_cast<std::size_t>(run.world));
  run_world(run.world, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, run.options);
    FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
    for (std::int64_t step = 0; step < run.steps; ++step) {
      testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
        return run.grad(comm.rank(), step, t, i);
      });
      optimizer.step(params.span(), grads.span());
    }
    states[static_cast<std::size_t>(comm.rank())] = optimizer.save();
  });
  return states;
}

Training sync_training(const Options& more, int steps) {
  Options options{{"sync", "all"}, {"sync_every", "1"}, {"sync_format", "fp32"}};
  for (const auto& [name, value] : more) options[name] = value;
  Training run = training(3, options, steps);
  run.absent = nullptr;
  return run;
}

TEST(LionCub, SynchronisedMomentaAreTheMean) {
  const Layout layout(kTensors);
  const auto states = states_of(layout, sync_training({}, 1));
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    const std::string key = "m/" + kTensors[t].name;
    const auto& m = states[0].tensors.at(key).values;
    EXPECT_EQ(m, states[1].tensors.at(key).values) << key;
    EXPECT_EQ(m, states[2].tensors.at(key).values) << key;
    for (std::size_t i = 0; i < m.size(); ++i) {
      float sum = 0;
      const auto c2 = static_cast<float>(1 - 0.99);
      for (int r = 0; r < 3; ++r) {
        const float part = 0.99f * 0.0f + c2 * gradient(r, 0, t, i);
        sum = r == 0 ? part : sum + part;
      }
      ASSERT_EQ(m[i], sum / 3.0f) << key << "[" << i << "]";
    }
  }
}

// In `sync_every` steps everything is averaged once, and no step carries more than its share.
TEST(LionCub, SpreadsSynchronisationOverSteps) {
  const Layout layout({{"w", {64 * 40}}, {"v", {64 * 8}}});
  const Training run = sync_training({{"sync_every", "6"}, {"probe_every", "0"}}, 6);
  std::vector<std::uint64_t> sent;
  const auto results = testing::train(layout, run);
  for (const auto& report : results[0].reports) sent.push_back(report.bytes_sent);
  Training none = run;
  none.options.options["sync"] = "none";
  const std::uint64_t vote = testing::train(layout, none)[0].reports[0].bytes_sent;
  for (const std::uint64_t bytes : sent) {
    // 8 blocks of 64 floats; two thirds of them go up, two thirds of twice a third come down
    EXPECT_NEAR(static_cast<double>(bytes - vote), 8 * 64 * 4 * 4.0 / 3, 64 * 4 * 3 + 4 * 64);
  }
}

TEST(LionCub, SynchronisesWhatIsNamed) {
  const Layout layout(kTensors);
  const auto equal = [&](const std::string& sync) {
    const auto states = states_of(layout, sync_training({{"sync", sync}}, 1));
    std::string names;
    for (const TensorSpec& spec : kTensors) {
      const std::string key = "m/" + spec.name;
      const bool same = states[0].tensors.at(key).values == states[1].tensors.at(key).values;
      if (same && spec.name != "frozen") names += spec.name + " ";
    }
    return names;
  };
  EXPECT_EQ(equal("none"), "");
  EXPECT_EQ(equal("vectors"), "bias scale ");
  EXPECT_EQ(equal("embeddings"), "embedding ");
  EXPECT_EQ(equal("first,last"), "embedding head ");
  EXPECT_EQ(equal("*e*d*"), "embedding head ");
  EXPECT_EQ(equal("w*,bias"), "weight bias ");
}

TEST(LionCub, AloneHasNothingToSynchronise) {
  const Layout layout(kTensors);
  Training run = sync_training({{"sync_format", "2"}}, 4);
  run.world = 1;
  Training none = run;
  none.options.options["sync"] = "none";
  EXPECT_EQ(params_of(layout, run), params_of(layout, none));
}

// Patterns are matched in time that does not explode with the stars.
TEST(LionCub, ManyStarsAreNoTrouble) {
  const std::string stars(200, '*');
  const Layout layout({{std::string(200, 'a'), {4}}});
  const auto cost = [&](const std::string& sync) {
    return method_cost("lion-cub", layout, {.options = {{"sync", sync}}}).bytes();
  };
  EXPECT_EQ(cost(stars), cost("all"));
  EXPECT_EQ(cost("a*a" + stars + "a"), cost("all"));
  EXPECT_THROW(cost(stars + "b"), InvalidArgument);
  EXPECT_THROW(cost("b" + stars), InvalidArgument);
  EXPECT_THROW(cost(""), InvalidArgument);
}

TEST(LionCub, RoundsSynchronisedMomentaAlikeOnAllRanks) {
  const Layout layout(kTensors);
  for (const char* format : {"bf16", "8", "4", "2"}) {
    const auto states = states_of(layout, sync_training({{"sync_format", format}}, 3));
    for (const TensorSpec& spec : kTensors) {
      const std::string key = "m/" + spec.name;
      EXPECT_EQ(states[0].tensors.at(key).values, states[2].tensors.at(key).values)
          << key << " " << format;
    }
  }
}

// --- Cost, state, diagnostics. ------------------------------------------------------------------

TEST(LionCub, CostEqualsCountedBytesInEveryStep) {
  const Layout layout(kTensors);
  const Options cases[] = {{{"bits", "1"}, {"sync", "all"}, {"probe_every", "2"}},
                           {{"bits", "3"}, {"sync", "vectors,first"}, {"sync_every", "3"}},
                           {{"bits", "8"}, {"sync", "all"}, {"sync_format", "5"}},
                           {{"granularity", "row"}, {"shared", "yes"}, {"tie", "zero"}},
                           {{"form", "direct"}, {"bits", "7"}}};
  for (const Options& options : cases) {
    for (const int world : {1, 2, 3, 4, 7}) {
      run_world(world, [&](Communicator& comm) {
        Training run = training(world, options);
        Optimizer optimizer(comm, layout, run.options);
        FlatBuffer params(layout.flat_size()), grads(layout.flat_size());
        testing::fill(layout, grads,
                      [&](std::size_t t, std::size_t i) { return gradient(comm.rank(), 0, t, i); });
        for (std::int64_t step = 0; step < 5; ++step) {
          const Cost cost = optimizer.cost(step);
          const StepReport report = optimizer.step(params.span(), grads.span());
          const bool direct = options.contains("form") && world > 1;
          EXPECT_EQ(cost.exact, !direct);
          if (direct) {
            EXPECT_LE(report.bytes_sent, cost.bytes()) << "N=" << world;
            EXPECT_GE(2 * report.bytes_sent, cost.bytes()) << "N=" << world;
          } else {
            EXPECT_EQ(report.bytes_sent, cost.bytes()) << "N=" << world << " step " << step;
          }
        }
      });
    }
  }
}

TEST(LionCub, TakesTheDirectFormWhereItIsCheaper) {
  // few coordinates on many ranks: headers outweigh levels
  const auto bytes = [](std::int64_t d, int world, const char* form) {
    const Layout layout({{"w", {d}}});
    return method_cost(
        "lion-cub", layout,
        {.options = {{"form", form}, {"bits", "2"}, {"shared", "no"}, {"sync", "none"}},
         .world = world});
  };
  EXPECT_LT(bytes(1000, 64, "direct").bytes(), bytes(1000, 64, "sharded").bytes());
  EXPECT_EQ(bytes(1000, 64, "auto").bytes(), bytes(1000, 64, "direct").bytes());
  EXPECT_EQ(bytes(1'000'000, 64, "auto").bytes(), bytes(1'000'000, 64, "sharded").bytes());
  EXPECT_FALSE(bytes(1000, 64, "auto").exact);
}

TEST(LionCub, ResumesBitForBit) {
  const Layout layout(kTensors);
  for (const Options& options :
       {Options{{"bits", "3"}, {"feedback", "yes"}, {"sync", "vectors"}, {"sync_every", "2"}},
        Options{{"bits", "1"}, {"sync", "all"}}}) {
    run_world(2, [&](Communicator& comm) {
      const Training run = training(2, options);
      FlatBuffer params(layout.flat_size()), grads(layout.flat_size()), halfway(layout.flat_size());
      const auto steps = [&](Optimizer& optimizer, FlatBuffer& x, int from, int to) {
        for (int step = from; step < to; ++step) {
          testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
            return gradient(comm.rank(), step, t, i);
          });
          optimizer.step(x.span(), grads.span());
        }
      };
      Optimizer whole(comm, layout, run.options), part(comm, layout, run.options);
      steps(whole, params, 0, 3);
      const StateDict state = whole.save();
      std::copy(params.span().begin(), params.span().end(), halfway.span().begin());
      steps(whole, params, 3, 7);
      part.load(state);
      steps(part, halfway, 3, 7);
      EXPECT_EQ(param_hash(layout, params.span()), param_hash(layout, halfway.span()));
    });
  }
}

// On gradients made so that everything is known.
TEST(LionCub, DiagnosticsAreWhatTheySay) {
  const Layout layout({{"agreed", {64}}, {"torn", {64}}});
  Training run{.world = 4, .steps = 2};
  run.options.method = "lion-cub";
  run.options.options = {{"bits", "4"}, {"probe_every", "2"}, {"sync", "none"}, {"shared", "no"}};
  // "agreed": all ranks the same. "torn": three small votes against a large one, whose side the
  // mean is on; levels of the L1 scale, +-7 at twice the mean, are blind to it, for all |g| are
  // alike
  run.grad = [](int rank, std::int64_t, std::size_t tensor, std::size_t i) {
    const float sign = i % 2 == 0 ? 1.0f : -1.0f;
    if (tensor == 0) return sign;
    return rank == 0 ? 10 * sign : -sign;
  };
  const auto ranks = testing::train(layout, run);
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank.reports[1].diagnostics.size(), 2u);
    EXPECT_TRUE(rank.reports[0].diagnostics.empty()) << "only every second step is measured";
    const TensorDiagnostics& agreed = rank.reports[1].diagnostics[0];
    EXPECT_EQ(agreed.unanimous, 1);
    EXPECT_EQ(agreed.momentum_variance, 0);
    EXPECT_EQ(agreed.vote_error, 0);
    const TensorDiagnostics& torn = rank.reports[1].diagnostics[1];
    EXPECT_EQ(torn.unanimous, 0);
    EXPECT_EQ(torn.sign_vote_error, 1);
    EXPECT_EQ(torn.vote_error, 1);
    EXPECT_EQ(torn.vote_loss, 1);
    // momenta 10, -1, -1, -1 of a unit: mean square 25.75, mean 1.75
    EXPECT_NEAR(torn.momentum_variance, (25.75 - 1.75 * 1.75) / 25.75, 1e-6);
  }
}

// A block that a rank does not touch has no say, in the vote and in what is told of it.
TEST(LionCub, DiagnosticsOfSignsLeaveOutBlocksThatAreNotPresent) {
  const Layout layout({{"rows", {4, 64}, 0, true}});
  Training run{.world = 3, .steps = 1};
  run.options.method = "lion-cub";
  run.options.options = {{"bits", "1"}, {"sync", "none"}, {"probe_every", "1"}};
  run.grad = [](int rank, std::int64_t, std::size_t, std::size_t i) {
    return static_cast<int>(i / 64) == rank ? 1.0f : 0.0f;
  };
  const auto ranks = testing::train(layout, run);
  const TensorDiagnostics& d = ranks[0].reports[0].diagnostics.at(0);
  EXPECT_EQ(d.samples, 12u);  // of 16: the last row is touched by nobody
  EXPECT_EQ(d.vote_error, 0);
  EXPECT_EQ(d.sign_vote_error, 0);
}

TEST(LionCub, RefusesOptionsThatMakeNoSense) {
  const Layout layout(kTensors);
  const auto refused = [&](const Options& options) {
    try {
      method_cost("lion-cub", layout, {.options = options});
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string("taken");
  };
  EXPECT_NE(refused({{"bits", "9"}}).find("from 1 to 8"), std::string::npos);
  EXPECT_NE(refused({{"bits", "2.5"}}).find("whole number"), std::string::npos);
  EXPECT_NE(refused({{"scale", "l0"}}).find("choose l1, l2, max, quantile"), std::string::npos);
  EXPECT_NE(refused({{"granularity", "block"}}).find("granularity = tensor or row"),
            std::string::npos);
  EXPECT_NE(refused({{"sync", "vectors,nothing"}}).find("named by 'nothing'"), std::string::npos);
  EXPECT_NE(refused({{"sync_format", "9"}}).find("choose fp32, bf16"), std::string::npos);
  EXPECT_NE(refused({{"sync_every", "0"}}).find("sync_every"), std::string::npos);
  EXPECT_NE(refused({{"bits", "1"}, {"feedback", "yes"}}).find("signsgd-ef"), std::string::npos);
  EXPECT_NE(refused({{"quantile", "0.1"}}).find("from 0.5 to 1"), std::string::npos);
  EXPECT_NE(refused({{"form", "ring"}}).find("auto, sharded, direct"), std::string::npos);
}

// --- Within a budget. ---------------------------------------------------------------------------

Training auto_training(int world, const std::string& budget) {
  Training run{.world = world, .steps = 24};
  run.options.method = "lion-cub-auto";
  run.options.options = {
      {"budget_bits", budget}, {"measure_steps", "16"}, {"sync_every", "4"}, {"probe_every", "0"}};
  return run;
}

TEST(LionCubAuto, ChoosesAlikeOnAllRanksAndKeepsItsBudget) {
  const Layout layout({{"a", {300, 100}}, {"b", {3000}}, {"c", {200, 100}}});
  const double d = static_cast<double>(layout.n_coords());
  for (const int world : {2, 4}) {
    for (const char* budget : {"2.5", "4", "8", "30"}) {
      const Training run = auto_training(world, budget);
      const auto ranks = testing::train(layout, run), again = testing::train(layout, run);
      SCOPED_TRACE(concat("N=", world, " budget ", budget, ": ", ranks[0].reports[15].note));
      double bytes = 0;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(ranks[r].hash, again[0].hash);
        EXPECT_NE(ranks[r].reports[15].note, "");
        EXPECT_EQ(ranks[r].reports[15].note, ranks[0].reports[15].note);
        EXPECT_EQ(ranks[r].reports[16].note, "");
        // whole rounds of synchronisation after the choice
        for (std::size_t step = 16; step < 24; ++step) {
          bytes += static_cast<double>(ranks[r].reports[step].bytes_sent);
        }
      }
      const double bits = 8 * bytes / (8 * d * world);  // of 8 steps
      EXPECT_LE(bits, std::stod(budget));
      EXPECT_EQ(ranks[0].reports[15].note, again[0].reports[15].note);
    }
  }
}

// Small buckets have more frames, and the choice knows it; so do the measuring steps' samples.
TEST(LionCubAuto, KeepsItsBudgetInSmallBucketsAndWhileItMeasures) {
  const Layout layout({{"a", {300, 100}}, {"b", {3000}}, {"c", {200, 100}}});
  const double d = static_cast<double>(layout.n_coords());
  Training run = auto_training(4, "6");
  run.options.bucket_coords = 4096;
  const auto ranks = testing::train(layout, run);
  double measuring = 0, after = 0;
  for (const auto& rank : ranks) {
    for (const StepReport& report : rank.reports) {
      (report.step < 16 ? measuring : after) += 8 * static_cast<double>(report.bytes_sent);
    }
  }
  EXPECT_LE(measuring / (16 * 4 * d), 6);
  EXPECT_LE(after / (8 * 4 * d), 6);
  EXPECT_GE(after / (8 * 4 * d), 3) << "the budget is not used";
}

TEST(LionCubAuto, RefusesABudgetBelowTheVote) {
  const Layout layout({{"w", {100'000}}});
  try {
    method_cost("lion-cub-auto", layout, {.options = {{"budget_bits", "1.4"}}, .world = 4});
    FAIL() << "a vote of one bit sends 1.5";
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("sends 1.5"), std::string::npos) << e.what();
  }
}

TEST(LionCubAuto, ResumesBeforeAndAfterItsChoice) {
  const Layout layout({{"a", {300, 20}}, {"b", {3000}}});
  for (const int cut : {10, 13, 18}) {
    run_world(2, [&](Communicator& comm) {
      const Training run = auto_training(2, "8");
      FlatBuffer params(layout.flat_size()), grads(layout.flat_size()), halfway(layout.flat_size());
      const auto steps = [&](Optimizer& optimizer, FlatBuffer& x, int from, int to) {
        for (int step = from; step < to; ++step) {
          testing::fill(layout, grads, [&](std::size_t t, std::size_t i) {
            return testing::gradient(comm.rank(), step, t, i);
          });
          optimizer.step(x.span(), grads.span());
        }
      };
      Optimizer whole(comm, layout, run.options), part(comm, layout, run.options);
      steps(whole, params, 0, cut);
      const StateDict state = whole.save();
      std::copy(params.span().begin(), params.span().end(), halfway.span().begin());
      steps(whole, params, cut, 24);
      part.load(state);
      steps(part, halfway, cut, 24);
      EXPECT_EQ(param_hash(layout, params.span()), param_hash(layout, halfway.span())) << cut;
      StateDict damaged = state;
      damaged.scalars["method.choice"] = "1 4 x";
      EXPECT_THROW(part.load(damaged), InvalidArgument);
    });
  }
}

}  // namespace
}  // namespace pride
