// replay, end to end, against the packed majority vote, written here as a plain loop in float. What
// the other methods compute is tested in tests/methods.
//
// Limits: where a blended value nearly cancels, rounding may give another sign; such coordinates
// are counted, and may be fewer than 1 in 1,000 after 20 steps.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "pride/error.h"
#include "pride/registry.h"
#include "replay/replay.h"
#include "support/temp_folder.h"

namespace pride::app {
namespace {

using test::expect_error;

constexpr std::uint32_t kSeed = 4438;
constexpr std::int64_t kSteps = 20;

SafeTensor normal(std::vector<std::int64_t> shape, std::mt19937& random, float scale) {
  std::size_t n = 1;
  for (const std::int64_t dim : shape) n *= static_cast<std::size_t>(dim);
  std::normal_distribution<float> distribution(0.0F, scale);
  SafeTensor tensor{.dtype = "F32", .shape = std::move(shape), .values = {}};
  for (std::size_t i = 0; i < n; ++i) tensor.values.push_back(distribution(random));
  return tensor;
}

// Tensors of awkward sizes, an empty one and a scalar among them.
Recording record(int workers, std::int64_t steps = kSteps, std::int64_t rows = 37) {
  std::mt19937 random(kSeed);
  std::map<std::string, SafeTensor> tensors;
  const std::map<std::string, std::vector<std::int64_t>> shapes = {
      {"blocks.0.weight", {rows, 65}}, {"blocks.0.bias", {65}}, {"empty", {4, 0}}, {"scale", {}}};
  for (const auto& [name, shape] : shapes) {
    std::vector<std::int64_t> grad_shape = shape;
    grad_shape.insert(grad_shape.begin(), {steps, workers});
    tensors["param." + name] = normal(shape, random, 0.5F);
    tensors["grad." + name] = normal(grad_shape, random, 0.01F);
  }
  return make_recording("recording", std::move(tensors));
}

ReplayOptions options(const std::string& method, const ParamGroup& group) {
  ReplayOptions options;
  options.optimizer.method = method;
  options.optimizer.groups = {group};
  // not every method has it, and one that has not refuses it
  if (method_info(method, 1).default_beta2 == 0) options.optimizer.groups[0].beta2.reset();
  return options;
}

const ParamGroup kGroup = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1};

// One coordinate: its gradient on each worker, step by step, in; its value after each step out.
using Coordinate = std::vector<double> (*)(float start,
                                           const std::vector<std::vector<float>>& grads);

struct Difference {
  double largest = 0;      // absolute
  std::size_t n_over = 0;  // coordinates of the last step that are further off than `tolerance`
  std::size_t n_coords = 0;
};

Difference compare(const Recording& recording, const ReplayResult& result, double tolerance,
                   Coordinate expected) {
  Difference difference;
  for (const auto& [name, t] : recording.tensors) {
    const std::vector<float>& actual = result.params.at("param." + name).values;
    const std::size_t n = t.param.size();
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<std::vector<float>> grads(kSteps);
      for (std::size_t row = 0; row < static_cast<std::size_t>(kSteps * recording.workers); ++row) {
        grads[row / static_cast<std::size_t>(recording.workers)].push_back(t.grads[row * n + i]);
      }
      const std::vector<double> path = expected(t.param[i], grads);
      EXPECT_EQ(path.size(), grads.size());
      double off = 0;
      for (std::size_t s = 0; s < path.size(); ++s) {
        off = std::max(off, std::abs(path[s] - static_cast<double>(actual[s * n + i])));
      }
      difference.largest = std::max(difference.largest, off);
      difference.n_over += off > tolerance ? 1 : 0;
      ++difference.n_coords;
    }
  }
  return difference;
}

// Lion's sign and momentum on each worker. The packed implementations send (update > 0) and take
// the majority of an odd number of bits.
std::vector<double> packed_vote(float x, const std::vector<std::vector<float>>& grads) {
  std::vector<float> m(grads.front().size());
  std::vector<double> path;
  for (const std::vector<float>& step : grads) {
    std::size_t ones = 0;
    for (std::size_t w = 0; w < step.size(); ++w) {
      ones += m[w] * 0.9F + step[w] * 0.1F > 0 ? 1 : 0;
      m[w] = m[w] * 0.99F + step[w] * 0.01F;
    }
    x = x * (1.0F - 1e-3F * 0.1F) - (2 * ones > m.size() ? 1e-3F : -1e-3F);
    path.push_back(x);
  }
  return path;
}

// x is about 1 in size and moves by 1e-3 a step: 20 roundings of 2^-25 are below this
constexpr double kRounding = 2e-6;

TEST(Replay, EqualsPackedMajorityVoteAtOddWorlds) {
  for (const int workers : {1, 3, 5, 7}) {
    const Recording recording = record(workers);
    const ReplayResult result = replay(recording, options("dlion-vote", kGroup));
    const Difference d = compare(recording, result, kRounding, packed_vote);
    EXPECT_LT(d.n_over * 1'000, d.n_coords)
        << workers << " workers, seed " << kSeed << ", largest difference " << d.largest;
  }
}

TEST(Replay, GivesShapesOfTheContract) {
  const ReplayResult result = replay(record(2), options("dlion-vote", kGroup));
  using Shape = std::vector<std::int64_t>;
  ASSERT_EQ(result.params.size(), 4U);
  EXPECT_EQ(result.params.at("param.blocks.0.weight").shape, (Shape{kSteps, 37, 65}));
  EXPECT_EQ(result.params.at("param.empty").shape, (Shape{kSteps, 4, 0}));
  EXPECT_EQ(result.params.at("param.scale").shape, (Shape{kSteps}));
  EXPECT_EQ(result.params.at("param.scale").values.size(), static_cast<std::size_t>(kSteps));
  EXPECT_EQ(result.n_coords, 37U * 65 + 65 + 1);
}

TEST(Replay, NoDecayExemptsMatchingTensorsOnly) {
  const Recording recording = record(3);
  ParamGroup none = kGroup;
  none.weight_decay = 0.0;
  ReplayOptions some = options("lion", kGroup);
  some.no_decay = {"*.bias", "scale"};
  const auto all_decay = replay(recording, options("lion", kGroup)).params;
  const auto no_decay = replay(recording, options("lion", none)).params;
  const auto mixed = replay(recording, some).params;
  for (const char* exempt : {"param.blocks.0.bias", "param.scale"}) {
    EXPECT_EQ(mixed.at(exempt).values, no_decay.at(exempt).values) << exempt;
    EXPECT_NE(mixed.at(exempt).values, all_decay.at(exempt).values) << exempt;
  }
  EXPECT_EQ(mixed.at("param.blocks.0.weight").values, all_decay.at("param.blocks.0.weight").values);
  some.no_decay = {"*.gain"};
  expect_error<InvalidArgument>([&] { replay(recording, some); }, {"\"*.gain\" matches none"});
}

TEST(Replay, CountsBytesAgainstTheRing) {
  // large enough for frames to be a small part
  const Recording recording = record(4, 2, 3'000);
  const auto vote = replay(recording, options("dlion-vote", kGroup));
  ASSERT_TRUE(vote.ratio_to_fp32_ring.has_value());
  EXPECT_GT(*vote.ratio_to_fp32_ring, 1.0 / 32);
  EXPECT_LT(*vote.ratio_to_fp32_ring, 1.05 / 32);
  const double ring = 2 * 3.0 / 4 * 4 * (3'000 * 65 + 65 + 1);
  EXPECT_DOUBLE_EQ(*vote.bytes_per_step_and_rank, *vote.ratio_to_fp32_ring * ring);
  const auto dense = replay(recording, options("lion", kGroup));
  EXPECT_GT(*dense.ratio_to_fp32_ring, 1.0);
  EXPECT_LT(*dense.ratio_to_fp32_ring, 1.05);
  const auto alone = replay(record(1), options("dlion-vote", kGroup));
  EXPECT_EQ(alone.bytes_per_step_and_rank, 0.0);
  EXPECT_FALSE(alone.ratio_to_fp32_ring.has_value());
}

TEST(Replay, OfNoStepsLeavesTheParameters) {
  const auto result = replay(record(2, 0), options("dlion-vote", kGroup));
  EXPECT_EQ(result.params.at("param.blocks.0.bias").shape, (std::vector<std::int64_t>{0, 65}));
  EXPECT_FALSE(result.bytes_per_step_and_rank.has_value());
}

TEST(Replay, NonFiniteGradientsRaiseOrSkip) {
  Recording recording = record(3);
  // step 5, worker 1, first bias
  recording.tensors.at("blocks.0.bias").grads[(5 * 3 + 1) * 65] =
      std::numeric_limits<float>::quiet_NaN();
  for (const char* method : {"adamw", "lion", "dlion-vote", "dlion-avg"}) {
    SCOPED_TRACE(method);
    ReplayOptions raise = options(method, kGroup);
    expect_error<NonFiniteGradient>([&] { replay(recording, raise); }, {"blocks.0.bias"});
    ReplayOptions skip = raise;
    skip.optimizer.non_finite = NonFinitePolicy::kSkip;
    const auto result = replay(recording, skip);
    EXPECT_EQ(result.skipped_steps, 1);
    const std::vector<float>& scale = result.params.at("param.scale").values;
    EXPECT_EQ(scale[5], scale[4]);
    EXPECT_NE(scale[6], scale[5]);
  }
}

using Tensors = std::map<std::string, SafeTensor>;

// A tensor with the values 1, 2, 3, ...
SafeTensor counting(std::vector<std::int64_t> shape, const std::string& dtype = "F32") {
  const std::int64_t n =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  SafeTensor tensor{.dtype = dtype, .shape = std::move(shape), .values = {}};
  tensor.values.resize(static_cast<std::size_t>(n));
  std::iota(tensor.values.begin(), tensor.values.end(), 1.0F);
  return tensor;
}

TEST(Recording, PairsParametersAndGradients) {
  const Recording recording = make_recording("f", {{"param.b", counting({2})},
                                                   {"grad.b", counting({3, 2, 2})},
                                                   {"param.a", counting({})},
                                                   {"grad.a", counting({3, 2})}});
  EXPECT_EQ(recording.steps, 3);
  EXPECT_EQ(recording.workers, 2);
  const Layout layout = recording.layout([](const std::string& name) { return name == "b"; });
  ASSERT_EQ(layout.tensors().size(), 2U);
  EXPECT_EQ(layout.tensors()[0].spec.name, "a");
  EXPECT_EQ(layout.tensors()[0].spec.group, 0);
  EXPECT_EQ(layout.tensors()[1].spec.group, 1);
  std::vector<float> flat(layout.flat_size());
  recording.copy_params(layout, flat);
  EXPECT_EQ(flat[0], 1.0F);
  EXPECT_EQ(flat[layout.tensors()[1].offset + 1], 2.0F);
  // step 1, worker 1 is the fourth row: a holds 4, b holds 7 and 8
  recording.copy_grads(layout, 1, 1, flat);
  EXPECT_EQ(flat[0], 4.0F);
  EXPECT_EQ(flat[layout.tensors()[1].offset], 7.0F);
  EXPECT_EQ(flat[layout.tensors()[1].offset + 1], 8.0F);
}

TEST(Recording, RefusesWhatIsNone) {
  const auto refuse = [](const Tensors& tensors, const std::string& why) {
    expect_error<DataError>([&] { make_recording("in.safetensors", tensors); },
                            {"in.safetensors: not a recording for replay: ", why});
  };
  const auto pair = [](const SafeTensor& param, const SafeTensor& grad) {
    return Tensors{{"param.a", param}, {"grad.a", grad}};
  };
  refuse({}, "no tensors");
  for (const char* name : {"weight", "params.a", "param.", "grad.", "gradient.a", "param"}) {
    refuse({{name, counting({1})}}, concat("\"", name, "\" is neither"));
  }
  refuse({{"param.a", counting({1})}}, "\"param.a\" is there, \"grad.a\" is missing");
  refuse({{"grad.a", counting({1, 1, 1})}}, "\"grad.a\" is there, \"param.a\" is missing");
  refuse(pair(counting({1}, "F64"), counting({1, 1, 1})),
         "\"param.a\" has dtype F64, expected F32");
  refuse(pair(counting({1}), counting({1, 1, 1}, "BF16")), "\"grad.a\" has dtype BF16");
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{}, {4}, {1, 1}, {1, 1, 3, 2}, {1, 1, 6}}) {
    refuse(pair(counting({2, 3}), counting(shape)), "before the parameter's [2, 3]");
  }
  refuse(pair(counting({1}), counting({2, 0, 1})), "has 0 workers");
  refuse(pair(counting({0}), counting({1, 1025, 0})), "has 1025 workers, expected 1 to 1024");
  for (const std::int64_t steps : {1, 2}) {
    Tensors two = pair(counting({1}), counting({2, 3, 1}));
    two["param.b"] = counting({1});
    two["grad.b"] = counting({steps, steps == 2 ? 2 : 3, 1});
    refuse(two, "those before it 2 of 3");
  }
}

}  // namespace

}  // namespace pride::app
