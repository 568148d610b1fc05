// Blocks of a matrix, by the option split. Oracles: the same run with the blocks as tensors of
// their own, bit for bit; and one Orthogonaliser on a copy of each block.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "methods/orthogonal_blend.h"
#include "rules/orthogonalise.h"
#include "support/training.h"

namespace pride::split_test {
namespace {

using testing::gradient;
using testing::initial;

// A matrix, and the blocks that it must have: of these rows, or columns.
struct Case {
  std::string name, split;
  std::size_t rows, cols;
  bool of_rows;
  std::vector<std::size_t> sizes;
};

const Case kLarge[] = {
    {"attn.qkv", methods::kSplit, 24, 8, true, {8, 8, 8}},
    {"attn.c_attn", methods::kSplit, 8, 24, false, {8, 8, 8}},
    {"attn.qkv", "qkv=12+2*4", 20, 12, true, {12, 4, 4}},
    {"attn.qkv", "qkv=12+2*4", 12, 20, false, {12, 4, 4}},
    {"q_proj", "q_proj=4*4", 16, 16, true, {4, 4, 4, 4}},
    {"attn.qkv", "qkv,=attn.qkv=2+22", 24, 8, true, {2, 22}},
    {"attn.qkv", "=attn.qkv=5+3,qkv", 24, 8, false, {5, 3}},
};
const Case kWithVectors[] = {
    {"w", "w=1+3+5*1", 9, 10, true, {1, 3, 1, 1, 1, 1, 1}},
    {"w", "w=1+8+1", 9, 10, false, {1, 8, 1}},
    {"w", "w=10*1", 9, 10, false, std::vector<std::size_t>(10, 1)},
};

// Of coordinate i of the matrix: its block, and its index there.
std::pair<std::size_t, std::size_t> place(const Case& c, std::size_t i) {
  const std::size_t row = i / c.cols, col = i % c.cols;
  std::size_t block = 0, at = c.of_rows ? row : col;
  while (at >= c.sizes[block]) at -= c.sizes[block++];
  return {block, c.of_rows ? at * c.cols + col : row * c.sizes[block] + at};
}

std::vector<std::int64_t> shape(std::size_t rows, std::size_t cols) {
  return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)};
}

OptionMap blend_options(const std::string& split, const std::string& every = "1") {
  OptionMap options;
  for (const MethodOption& option : methods::OrthogonalBlend::options("none")) {
    options[option.name] = option.default_value;
  }
  options["split"] = split;
  options["every"] = every;
  return options;
}

// Parameters of rank 0. `value` is the tensor and index whose gradients a coordinate has. A tensor
// behind the matrix would show a factor that is too long.
std::vector<float> trained(
    std::vector<TensorSpec> tensors, const OptimizerOptions& options,
    const std::function<std::pair<std::size_t, std::size_t>(std::size_t, std::size_t)>& value) {
  tensors.push_back({"behind", {6, 9}});
  const std::size_t behind = tensors.size() - 1;
  const auto key = [&](std::size_t t, std::size_t i) {
    return t == behind ? std::pair<std::size_t, std::size_t>{100, i} : value(t, i);
  };
  const Layout layout(tensors);
  std::vector<float> result;
  run_world(3, [&](Communicator& comm) {
    Optimizer optimizer(comm, layout, options);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    testing::fill(layout, x, [&](std::size_t t, std::size_t i) {
      return initial(key(t, i).first, key(t, i).second);
    });
    for (std::int64_t step = 0; step < 4; ++step) {
      testing::fill(layout, g, [&](std::size_t t, std::size_t i) {
        return gradient(comm.rank(), step, key(t, i).first, key(t, i).second);
      });
      optimizer.step(x.span(), g.span());
    }
    optimizer.to_common(x.span());
    if (comm.rank() != 0) return;
    for (const TensorSlot& slot : layout.tensors()) {
      const auto part = x.span().subspan(slot.offset, slot.n);
      result.insert(result.end(), part.begin(), part.end());
    }
  });
  return result;
}

void expect_steps_of_the_blocks(const Case& c, const OptimizerOptions& options) {
  SCOPED_TRACE(concat(options.method, ", split = ", c.split, " of ", c.rows, " x ", c.cols,
                      ", every = ", options.options.at("every")));
  OptimizerOptions joined = options, apart = options;
  joined.options["split"] = c.split;
  apart.options["split"] = "none";
  std::vector<TensorSpec> blocks;
  std::vector<std::size_t> begins;
  std::size_t n = 0;
  for (std::size_t b = 0; b < c.sizes.size(); ++b) {
    blocks.push_back(
        {concat("block", b), c.of_rows ? shape(c.sizes[b], c.cols) : shape(c.rows, c.sizes[b])});
    begins.push_back(n);
    n += c.sizes[b] * (c.of_rows ? c.cols : c.rows);
  }
  const auto got = trained({{c.name, shape(c.rows, c.cols)}}, joined,
                           [&](std::size_t, std::size_t i) { return place(c, i); });
  const auto want = trained(blocks, apart, [](std::size_t t, std::size_t i) {
    return std::pair{t, i};
  });
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto [block, index] = i < n ? place(c, i) : std::pair<std::size_t, std::size_t>{};
    ASSERT_EQ(got[i], want[i < n ? begins[block] + index : i]) << "coordinate " << i;
  }
}

class SplitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  }
};

TEST_F(SplitTest, AMatrixMovesAsItsBlocksApart) {
  for (const char* method : {"dlion-muon", "dlion-muon-avg", "local-muon", "muon"}) {
    for (const char* every : {"1", "2"}) {
      OptimizerOptions options{.method = method,
                               .options = {{"every", every}, {"matrix_scale", "none"}},
                               .groups = {{.lr = 1e-2, .weight_decay = 0.1}}};
      if (options.method == "local-muon") options.options["h"] = "2";
      for (const Case& c : kLarge) expect_steps_of_the_blocks(c, options);
    }
  }
}

// Newton-Schulz of a vector keeps its direction; the length, at first 1, is its singular value.
double length_of_a_vector() {
  double x = 1;
  for (int i = 0; i < 5; ++i) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  return x;
}

// With beta1 = 0 the blend is the gradient.
void expect_directions_of_the_blocks(const Case& c) {
  SCOPED_TRACE(concat("split = ", c.split, " of ", c.rows, " x ", c.cols));
  const Layout layout({{c.name, shape(c.rows, c.cols)}});
  StateTable state;
  methods::OrthogonalBlend blend({layout, 1, blend_options(c.split)}, state, StateKind::kLocal);
  std::vector<float> g(c.rows * c.cols), m(g.size(), 0.0f);
  std::vector<std::vector<float>> blocks(c.sizes.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].resize(c.sizes[b] * (c.of_rows ? c.cols : c.rows));
  }
  for (std::size_t i = 0; i < g.size(); ++i) {
    const auto [block, index] = place(c, i);
    blocks[block][index] = g[i] = gradient(1, 2, 3, i);
  }
  blend.blend(0, 0, {0, 1, 0, 1}, Values::of(g), std::span(m));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::size_t rows = c.of_rows ? c.sizes[b] : c.rows, cols = blocks[b].size() / rows;
    const double norm = std::sqrt(kernels::sum_squares(blocks[b]));
    const float first = blocks[b][0];
    rules::Orthogonaliser(5).run({blocks[b].data(), rows, cols, cols});
    if (std::min(rows, cols) > 1) continue;
    EXPECT_NEAR(blocks[b][0], first / norm * length_of_a_vector(), 1e-6) << "block " << b;
  }
  for (std::size_t i = 0; i < g.size(); ++i) {
    const auto [block, index] = place(c, i);
    ASSERT_EQ(blend.direction(0)[i], blocks[block][index]) << "coordinate " << i;
  }
}

TEST_F(SplitTest, EachBlockIsOrthogonalised) {
  for (const Case& c : kLarge) expect_directions_of_the_blocks(c);
  for (const Case& c : kWithVectors) expect_directions_of_the_blocks(c);
}

// All other dimensions than the first are columns.
TEST_F(SplitTest, BlocksHaveAllValuesAndTheirFactorsFit) {
  const std::pair<const char*, std::size_t> splits[] = {
      {"none", 1},       {"conv=6", 1},    {"conv=10", 1},    {"conv=6*1", 6},
      {"conv=5+1", 2},   {"conv=9+1", 2},  {"conv=10*1", 10}, {"conv=2*3+1*4", 3},
      {"conv=1+2+3", 3}, {"conv=2*1+4", 3}};
  const Layout layout({{"conv", {6, 2, 5}}});
  for (const auto& [split, n] : splits) {
    const auto matrices = methods::matrices_of("muon", layout, blend_options(split));
    ASSERT_EQ(matrices.size(), 1u);
    EXPECT_EQ(matrices[0].blocks.size(), n) << split;
    EXPECT_EQ(matrices[0].form(), n == 1 ? MatrixForm::kWhole : MatrixForm::kSplit) << split;
    std::vector<int> covered(60, 0);
    std::size_t of_factors = 0;
    for (const methods::MatrixBlock& block : matrices[0].blocks) {
      for (std::size_t r = 0; r < block.rows; ++r) {
        for (std::size_t c = 0; c < block.cols; ++c) ++covered.at(block.begin + 10 * r + c);
      }
      const std::size_t shorter = std::min(block.rows, block.cols);
      of_factors += shorter * shorter;
    }
    EXPECT_EQ(covered, std::vector<int>(60, 1)) << split;
    EXPECT_LE(of_factors, 60u) << split;
  }
}

TEST_F(SplitTest, OperationsAreThoseOfTheBlocks) {
  const Layout whole({{"qkv", {96, 64}}}),
      apart({{"q", {64, 64}}, {"k", {16, 64}}, {"v", {16, 64}}});
  for (const char* every : {"1", "4"}) {
    EXPECT_EQ(matrix_operations("dlion-muon", whole,
                                {.options = {{"split", "qkv=64+2*16"}, {"every", every}}}),
              matrix_operations("dlion-muon", apart, {.options = {{"every", every}}}));
  }
}

// A tensor has one learning rate, so its blocks share the scale of the whole matrix.
TEST_F(SplitTest, TheScaleIsThatOfTheWholeMatrix) {
  const Layout layout({{"qkv", {96, 64}}, {"w", {40, 16}}});
  for (const auto& [rule, scale] : {std::pair{"rms", 0.2f * std::sqrt(96.0f)}, {"fan-in", 0.25f}}) {
    for (const char* split : {"none", "qkv=64+2*16", "qkv=4*16"}) {
      OptionMap options = blend_options(split);
      options["matrix_scale"] = rule;
      StateTable state;
      const methods::OrthogonalBlend blend({layout, 1, options}, state, StateKind::kLocal);
      EXPECT_EQ(blend.step_scale(0), scale) << rule << ", " << split;
    }
  }
}

}  // namespace
}  // namespace pride::split_test
