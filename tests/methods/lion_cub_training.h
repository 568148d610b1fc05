// Training runs for the tests of Lion Cub: tensors of every kind, some unused, some never touched.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/training.h"

namespace pride::cub {

using Options = std::map<std::string, std::string>;
using testing::Training;

inline const std::vector<TensorSpec> kTensors = {
    {"embedding", {40, 16}}, {"weight", {330, 37}}, {"bias", {33}},
    {"scale", {}},           {"head", {130, 5}},    {"frozen", {70}},
};

inline bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 2 && rank == 1) || (tensor == 3 && step == 1);
}
// "frozen" has gradients of zero, rows 20-39 of the embedding are touched by no rank.
inline float gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  if (tensor == 5 || (tensor == 0 && index >= 20 * 16)) return 0;
  return testing::gradient(rank, step, tensor, index);
}

inline Training training(int world, const Options& options, int steps = 4) {
  Training run{.world = world, .steps = steps};
  run.options.method = "lion-cub";
  run.options.options = {{"granularity", "block"}, {"shared", "no"}, {"sync", "none"}};
  for (const auto& [name, value] : options) run.options.options[name] = value;
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
  run.options.seed = 99;
  run.options.bucket_coords = 4096;
  run.unused = unused;
  run.grad = gradient;
  return run;
}

// Parameters of the run, after checking that all ranks have the same.
inline std::vector<float> params_of(const Layout& layout, const Training& run) {
  const auto ranks = testing::train(layout, run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
  return ranks[0].params;
}

}  // namespace pride::cub
