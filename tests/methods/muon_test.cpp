// dlion-muon against Newton-Schulz in double. Signs are compared where rounding of float32 products
// cannot change the factor's sign. On all other coordinates only replicas are compared.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "methods/orthogonal_blend.h"
#include "reference/newton_schulz_ref.h"
#include "rules/orthogonalise.h"
#include "support/texts.h"
#include "support/training.h"

namespace pride::muon_test {
namespace {

using reference::Dense;
using reference::kNewtonSchulzTolerance;
using testing::gradient;
using testing::initial;

const std::vector<TensorSpec> kTensors = {
    {"wte", {40, 8}},       {"block.w1", {24, 33}},    {"block.b1", {24}}, {"block.w2", {70, 24}},
    {"block.w3", {16, 16}}, {"block.conv", {6, 2, 5}}, {"head", {40, 8}},  {"block.row", {1, 50}}};
const std::vector<std::size_t> kMatrices = {1, 3, 4, 5};

bool is_matrix(std::size_t tensor) { return std::ranges::count(kMatrices, tensor) > 0; }

Dense matrix_of(const TensorSpec& spec) {
  const auto rows = static_cast<std::size_t>(spec.shape[0]);
  std::size_t n = 1;
  for (const std::int64_t e : spec.shape) n *= static_cast<std::size_t>(e);
  return {rows, n / rows, std::vector<double>(n, 0.0)};
}

TEST(Muon, IsThereWhereBlasIs) {
  const bool listed = std::ranges::count(method_names(), "dlion-muon") > 0;
  EXPECT_EQ(listed, rules::has_blas());
  if (listed) return;
  texts::expect_error<InvalidArgument>([&] { method_info("dlion-muon", 4); }, {"no CBLAS"});
}

class MuonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  }
};

TEST_F(MuonTest, ADirectionIsFreedWithItsLastPiece) {
  const Layout layout({{"w", {8, 16}}});
  OptionMap options;
  for (const MethodOption& option : methods::OrthogonalBlend::options("none")) {
    options[option.name] = option.default_value;
  }
  StateTable state;
  methods::OrthogonalBlend blend({layout, 1, options}, state, StateKind::kLocal);
  std::vector<float> g(128, 1), m(128, 0);
  for (int step = 0; step < 2; ++step) {
    blend.blend(0, step, {0.9F, 0.1F, 0.99F, 0.01F}, Values::of(g), std::span(m));
    blend.release({.tensor = 0, .begin = 0, .end = 64});
    EXPECT_EQ(blend.direction(0).size(), 128u);
    blend.release({.tensor = 0, .begin = 64, .end = 128});
    EXPECT_TRUE(blend.direction(0).empty());
  }
}

TEST_F(MuonTest, MatricesAreChosenByShapeAndName) {
  const auto found = [](const std::string& words) {
    std::vector<std::size_t> tensors;
    const OptionMap options = {{"not_matrices", words}, {"split", "none"}};
    for (const auto& m : methods::matrices_of("muon", Layout(kTensors), options)) {
      tensors.push_back(m.tensor);
    }
    return tensors;
  };
  EXPECT_EQ(found("wte,head"), kMatrices);
  EXPECT_EQ(found(" wte, head , "), kMatrices);
  EXPECT_EQ(found("").size(), kMatrices.size() + 2);
  EXPECT_EQ(found("w,head,conv").size(), 0u);
}

// One step of all ranks by the oracle: x moves by lr against the majority of the ranks' signs, here
// with an odd number of ranks. A factor of Newton-Schulz is kept for `every` steps.
class Oracle {
 public:
  Oracle(int world, bool average, int every) : world_(world), average_(average), every_(every) {
    for (std::size_t t = 0; t < kTensors.size(); ++t) {
      x_.push_back(matrix_of(kTensors[t]));
      for (std::size_t i = 0; i < x_[t].v.size(); ++i) x_[t].v[i] = initial(t, i);
      sure_.push_back(std::vector<char>(x_[t].v.size(), 1));
    }
    m_.resize(static_cast<std::size_t>(world), x_);
    factors_ = m_;
    for (auto& of_rank : m_) {
      for (auto& m : of_rank) std::ranges::fill(m.v, 0.0);
    }
  }

  void step(std::int64_t step, double lr) {
    for (const std::size_t t : kMatrices) {
      std::vector<int> votes(x_[t].v.size(), 0);
      for (int r = 0; r < world_; ++r) {
        Dense& m = m_[static_cast<std::size_t>(r)][t];
        Dense& factor = factors_[static_cast<std::size_t>(r)][t];
        Dense u = m;
        for (std::size_t i = 0; i < u.v.size(); ++i) {
          const double g = gradient(r, step, t, i);
          u.v[i] = 0.9 * m.v[i] + 0.1 * g;
          m.v[i] = 0.95 * m.v[i] + 0.05 * g;
        }
        u = step % every_ == 0 ? reference::newton_schulz(u, 5, &factor)
                               : reference::by_factor(factor, u);
        for (std::size_t i = 0; i < u.v.size(); ++i) {
          votes[i] += u.v[i] > 0 ? 1 : -1;
          if (std::abs(u.v[i]) < kNewtonSchulzTolerance) sure_[t][i] = 0;
        }
      }
      for (std::size_t i = 0; i < votes.size(); ++i) {
        const double sign = votes[i] > 0 ? 1 : -1;
        x_[t].v[i] -= lr * (average_ ? static_cast<double>(votes[i]) / world_ : sign);
      }
    }
  }

  void compare(const Layout& layout, const std::vector<float>& got) const {
    std::size_t compared = 0, all = 0;
    for (const std::size_t t : kMatrices) {
      const std::size_t offset = layout.tensors()[t].offset;
      for (std::size_t i = 0; i < x_[t].v.size(); ++i, ++all) {
        if (sure_[t][i] == 0) continue;
        ++compared;
        ASSERT_NEAR(got[offset + i], x_[t].v[i], 1e-5) << kTensors[t].name << ", index " << i;
      }
    }
    EXPECT_GT(compared, all * 8 / 10);
  }

 private:
  int world_;
  bool average_;
  int every_;
  std::vector<Dense> x_;
  std::vector<std::vector<Dense>> m_, factors_;  // by rank
  std::vector<std::vector<char>> sure_;
};

TEST_F(MuonTest, MatricesVoteOnTheirOrthogonalisedMomentum) {
  const Layout layout(kTensors);
  for (const int world : {1, 3}) {
    for (const auto& [average, every] :
         std::vector<std::pair<bool, int>>{{true, 1}, {false, 1}, {false, 2}, {false, 3}}) {
      testing::Training run{.world = world, .steps = 5};
      run.options = {.method = average ? "dlion-muon-avg" : "dlion-muon",
                     .options = {{"every", std::to_string(every)}},
                     .groups = {{.lr = 1e-2}},
                     .bucket_coords = 256};
      const auto ranks = testing::train(layout, run);
      Oracle oracle(world, average, every);
      for (std::int64_t step = 0; step < run.steps; ++step) oracle.step(step, 1e-2);
      oracle.compare(layout, ranks[0].params);
      for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
    }
  }
}

TEST_F(MuonTest, AllElseIsDistributedLionBitForBit) {
  const Layout layout(kTensors);
  for (const char* form : {"vote", "avg"}) {
    testing::Training run{.world = 4, .steps = 5, .unused = testing::unused};
    run.options = {.method = std::string("dlion-") + form,
                   .groups = {{.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.97}}};
    const auto lion = testing::train(layout, run);
    run.options.method = form == std::string("avg") ? "dlion-muon-avg" : "dlion-muon";
    const auto muon = testing::train(layout, run);
    EXPECT_EQ(muon[0].cost.bytes(), lion[0].cost.bytes());
    EXPECT_EQ(muon[0].reports.back().bytes_sent, lion[0].reports.back().bytes_sent);
    for (std::size_t t = 0; t < kTensors.size(); ++t) {
      const TensorSlot& slot = layout.tensors()[t];
      const auto part = [&](const testing::RankResult& r) {
        return std::vector<float>(
            r.params.begin() + static_cast<std::ptrdiff_t>(slot.offset),
            r.params.begin() + static_cast<std::ptrdiff_t>(slot.offset + slot.n));
      };
      EXPECT_EQ(part(muon[0]) == part(lion[0]), !is_matrix(t) || t == 4) << slot.spec.name;
    }
  }
}

// A rank with most of the votes decides.
TEST_F(MuonTest, VotesHaveWeights) {
  const Layout layout(kTensors);
  testing::Training alone{.world = 1, .steps = 3}, weighted{.world = 2, .steps = 3};
  alone.options.method = weighted.options.method = "dlion-muon";
  weighted.weights = {3, 2};
  EXPECT_EQ(testing::train(layout, weighted)[1].hash, testing::train(layout, alone)[0].hash);
}

// Steps 0 and 2 make a factor, 1 and 3 take the last one: another result than with one each step,
// the same on all ranks, and the same when the run is cut between a factor and its use.
TEST_F(MuonTest, AKeptFactorIsUsedAndSaved) {
  const Layout layout(kTensors);
  for (const char* method : {"dlion-muon", "muon"}) {
    testing::Training run{.world = 3, .steps = 4};
    run.options = {.method = method, .options = {{"every", "2"}}, .groups = {{.lr = 1e-2}}};
    const auto kept = testing::train(layout, run);
    for (const auto& rank : kept) EXPECT_EQ(rank.hash, kept[0].hash);
    testing::Training anew = run;
    anew.options.options.clear();
    EXPECT_NE(testing::train(layout, anew)[0].hash, kept[0].hash) << "a factor for each step";
    run_world(3, [&](Communicator& comm) {
      FlatBuffer x(layout.flat_size()), g(layout.flat_size());
      testing::fill(layout, x, testing::initial);
      StateDict state;
      for (std::int64_t step = 0; step < 4; ++step) {
        Optimizer optimizer(comm, layout, run.options);  // a new one for every step
        if (step > 0) optimizer.load(state);
        testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
          return gradient(comm.rank(), step, t, i);
        });
        optimizer.step(x.span(), g.span());
        state = optimizer.save();
      }
      EXPECT_EQ(param_hash(layout, x.span()), kept[0].hash) << method;
    });
  }
}

TEST_F(MuonTest, OperationsAreThoseOfItsMatrices) {
  const Layout layout({{"wte", {100, 16}}, {"block.qkv", {48, 16}}, {"block.w", {16, 64}}});
  const double r = 16, cube = r * r * r;
  // three squares of 5 (3 r^2 r + r^3); by the factor 3 r^2 4r + (7 * 5 - 6) r^3
  EXPECT_EQ(matrix_operations("dlion-muon", layout, {}), 3 * 5 * 4 * cube + (12 + 29) * cube);
  EXPECT_EQ(matrix_operations("muon", layout, {}), matrix_operations("dlion-muon", layout, {}));
  EXPECT_EQ(matrix_operations("dlion-vote", layout, {}), 0);
  EXPECT_LT(matrix_operations("dlion-muon", layout, {.options = {{"every", "4"}}}),
            matrix_operations("dlion-muon", layout, {.options = {{"iterations", "3"}}}));
}

TEST_F(MuonTest, ANonFiniteGradientOfAMatrixIsNamedOnAllRanks) {
  const Layout layout(kTensors);
  testing::Training run{.world = 3, .steps = 1};
  run.options = {.method = "dlion-muon", .bucket_coords = 128};
  run.grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
    return rank == 1 && t == 3 && i == 1000 ? std::nanf("") : gradient(rank, step, t, i);
  };
  const auto errors = testing::errors_of<NonFiniteGradient>(
      3, [&](Communicator& comm) { testing::train_rank(comm, layout, run); });
  ASSERT_EQ(errors.size(), 3u);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("'block.w2' on rank 1"), std::string::npos) << error;
  }
}

// muon: the mean gradient's blend, orthogonalised, times 0.2 sqrt(longer side); AdamW elsewhere.
TEST_F(MuonTest, OnTheMeanGradientIsTheSerialRule) {
  const Layout layout(kTensors);
  for (const int world : {1, 3}) {
    testing::Training run{.world = world, .steps = 3};
    run.options = {
        .method = "muon", .groups = {{.lr = 1e-2, .weight_decay = 0.1}}, .bucket_coords = 256};
    const auto muon = testing::train(layout, run);
    run.options.method = "adamw";
    const auto adamw = testing::train(layout, run);
    EXPECT_EQ(muon[0].cost.bytes(), adamw[0].cost.bytes());
    for (std::size_t t = 0; t < kTensors.size(); ++t) {
      Dense x = matrix_of(kTensors[t]), m = x;
      for (std::size_t i = 0; i < x.v.size(); ++i) x.v[i] = initial(t, i);
      std::ranges::fill(m.v, 0.0);
      const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(x.rows, x.cols)));
      for (std::int64_t step = 0; step < run.steps && is_matrix(t); ++step) {
        Dense u = m;
        for (std::size_t i = 0; i < u.v.size(); ++i) {
          double g = 0;
          for (int r = 0; r < world; ++r) g += gradient(r, step, t, i) / world;
          u.v[i] = 0.9025 * m.v[i] + 0.0975 * g;
          m.v[i] = 0.95 * m.v[i] + 0.05 * g;
        }
        u = reference::newton_schulz(u, 5);
        for (std::size_t i = 0; i < x.v.size(); ++i) {
          x.v[i] = (1 - 1e-2 * 0.1) * x.v[i] - 1e-2 * scale * u.v[i];
        }
      }
      const std::size_t offset = layout.tensors()[t].offset;
      for (std::size_t i = 0; i < x.v.size(); ++i) {
        if (is_matrix(t)) {
          ASSERT_NEAR(muon[0].params[offset + i], x.v[i], 3 * 1e-2 * scale * kNewtonSchulzTolerance)
              << kTensors[t].name << ", index " << i;
        } else {
          ASSERT_EQ(muon[0].params[offset + i], adamw[0].params[offset + i])
              << kTensors[t].name << ", index " << i;
        }
      }
    }
  }
}

TEST_F(MuonTest, TheStateOfKeptFactorsIsCounted) {
  const Layout layout({{"w", {1}}});
  for (const auto& [method, floats] : {std::pair{"dlion-muon", 1}, {"muon", 2}}) {
    EXPECT_EQ(state_of(method, layout).floats, floats);
    EXPECT_EQ(state_of(method, layout, {{"every", "4"}}).floats, floats + 1);
  }
  EXPECT_THROW(state_of("dlion-muon", layout, {{"every", "0"}}), InvalidArgument);
  EXPECT_THROW(state_of("dlion-muon", layout, {{"never", "4"}}), InvalidArgument);
}

TEST_F(MuonTest, FanInScalesTheStepOfAMatrix) {
  const Layout layout(kTensors);
  testing::Training run{.world = 1, .steps = 1};
  run.options = {
      .method = "dlion-muon", .options = {{"matrix_scale", "fan-in"}}, .groups = {{.lr = 1e-2}}};
  const auto result = testing::train(layout, run);
  const double least = 10;  // of block.conv: 2 x 5
  for (const std::size_t t : kMatrices) {
    const auto cols = static_cast<double>(matrix_of(kTensors[t]).cols);
    const std::size_t at = layout.tensors()[t].offset;
    EXPECT_NEAR(std::abs(result[0].params[at] - initial(t, 0)), 1e-2 * least / cols, 1e-6)
        << kTensors[t].name;
  }
}

}  // namespace
}  // namespace pride::muon_test
