// Every method, real exchange included, against the scalar oracles: bit for bit.
// SPDX-License-Identifier: Apache-2.0
// Oracle: tests/reference/methods_ref.h, loops over ranks without frames.
#include <gtest/gtest.h>

#include "pride/registry.h"
#include "reference/methods_ref.h"
#include "support/training.h"

namespace pride::oracle_test {
namespace {

using reference::Hyper;
using reference::Oracle;
using testing::Training;

// Methods of tests/reference/methods_ref.h; the others have an oracle and a test file of their own.
const char* const kMethods[] = {"adamw",     "sgdm",        "lion",      "dlion-vote",
                                "dlion-avg", "signum-vote", "signum-avg"};

const std::vector<TensorSpec> kTensors = {
    {"embedding", {40, 16}}, {"weight", {330, 37}}, {"bias", {33}, 1},
    {"scale", {}, 1},        {"head", {130, 5}},
};

// Rank 1 never has "bias"; no rank has "scale" at step 1; the embedding's rows 8-39 are touched by
// rank 0 only, rows 20-39 by no rank.
bool unused(int rank, std::int64_t step, std::size_t tensor) {
  return (tensor == 2 && rank == 1) || (tensor == 3 && step == 1);
}
float sparse_gradient(int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
  if (tensor == 0 && (index >= 20 * 16 || (index >= 8 * 16 && rank != 0))) return 0;
  return testing::gradient(rank, step, tensor, index);
}

struct Case {
  std::string method, option, value;  // no option: ""
  int world;
};

class MethodOracle : public ::testing::TestWithParam<Case> {};

TEST_P(MethodOracle, AgreesBitForBit) {
  const Case c = GetParam();
  const Layout layout(kTensors);
  Training run{.world = c.world, .steps = 5};
  run.options.method = c.method;
  if (!c.option.empty()) run.options.options[c.option] = c.value;
  const bool adam = c.method == "adamw", signum = c.method.starts_with("signum");
  run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}, {.lr = 0.003, .weight_decay = 0.0}};
  run.options.seed = 99;
  // counts are packed in groups of up to 20 words of 64 coordinates: shards of some groups
  run.options.bucket_coords = c.method.ends_with("avg") ? 8192 : 256;
  run.unused = unused;
  run.grad = sparse_gradient;
  const auto ranks = testing::train(layout, run);

  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    const bool group1 = slot.spec.group == 1;
    const Hyper hyper{.lr = group1 ? 0.003 : 0.01,
                      .beta1 = signum ? 0.99 : 0.9,
                      .beta2 = adam ? 0.999 : 0.99,
                      .eps = 1e-8,
                      .weight_decay = group1 ? 0.0 : 0.1,
                      .nesterov = c.option == "nesterov",
                      .bf16 = c.value == "bf16",
                      .levels = c.value.starts_with("int") ? c.value[3] - '0' : 0,
                      .bf16_momentum = c.value == "bfloat16"};
    const Oracle oracle(c.method, c.world, testing::initial_of(layout, t), hyper, slot.offset,
                        c.value == "zero", 99);
    ASSERT_EQ(testing::difference(oracle, layout, t, run, ranks), "");
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const char* method : kMethods) cases.push_back({method, "", "", world});
    cases.push_back({"sgdm", "nesterov", "yes", world});
    for (const char* method : {"adamw", "sgdm", "lion"}) {
      for (const char* dense : {"bf16", "int8", "int4", "int2"}) {
        cases.push_back({method, "dense", dense, world});
      }
    }
    for (const char* route : {"sharded", "one-shot"}) {
      for (const char* method : {"dlion-vote", "dlion-avg", "signum-vote", "signum-avg"}) {
        cases.push_back({method, "route", route, world});
      }
    }
    for (const char* method : {"lion", "dlion-vote", "dlion-avg", "signum-vote", "signum-avg"}) {
      cases.push_back({method, "momentum_dtype", "bfloat16", world});
    }
    cases.push_back({"dlion-vote", "tie", "zero", world});
    cases.push_back({"signum-vote", "tie", "zero", world});
    cases.push_back({"dlion-avg", "counts", "planes", world});
    cases.push_back({"signum-avg", "counts", "planes", world});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, MethodOracle, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  std::string name = info.param.method + info.param.value + "_" + std::to_string(info.param.world);
  for (char& ch : name) ch = ch == '-' ? '_' : ch;
  return name;
});

// Alone, both forms of Distributed Lion are Lion (no exact zeros: Lion's sign(0) is 0).
TEST(DistributedLion, EqualsLionWhenAlone) {
  const Layout layout({{"w", {1000}}});
  std::vector<std::uint64_t> hashes;
  for (const char* method : {"lion", "dlion-vote", "dlion-avg"}) {
    Training run{.world = 1, .steps = 10};
    run.options.method = method;
    run.grad = [](int rank, std::int64_t step, std::size_t t, std::size_t i) {
      const float g = testing::gradient(rank, step, t, i);
      return g == 0 ? 0.5f : g;
    };
    hashes.push_back(testing::train(layout, run)[0].hash);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(hashes[0], hashes[2]);
}

}  // namespace
}  // namespace pride::oracle_test
