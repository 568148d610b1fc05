// Virtual workers equal ranks: parameters, states, counted bytes. The oracle is a run of ranks on
// threads, which other tests compare with scalar oracles.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "pride/error.h"
#include "pride/registry.h"
#include "virtual_run.h"

namespace pride::virtual_test {
namespace {

using testing::kTensors;
using testing::Training;

class VirtualWorkers : public ::testing::TestWithParam<std::string> {
 protected:
  Training run(int world) const {
    Training run{.world = world, .steps = 5};
    testing::set_method(run.options, GetParam());
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = 5;
    run.options.bucket_coords = 1000;
    run.unused = testing::unused;
    return run;
  }
  static bool late() { return GetParam().find("delay=") != std::string::npos; }
};

TEST_P(VirtualWorkers, EqualRanks) {
  const Layout layout(kTensors);
  for (const int world : {1, 2, 3, 8}) {
    const Training given = run(world);
    expect_same(testing::train_virtual(layout, given), testing::train_ranks(layout, given),
                concat(GetParam(), ", N = ", world), late());
  }
}

TEST_P(VirtualWorkers, SkipAStepAsRanksDo) {
  const Layout layout(kTensors);
  Training given = run(3);
  given.options.non_finite = NonFinitePolicy::kSkip;
  given.grad = [](int rank, std::int64_t step, std::size_t tensor, std::size_t index) {
    const bool bad = rank == 1 && step == 2 && tensor == 1 && index == 1234;
    return bad ? std::numeric_limits<float>::quiet_NaN()
               : testing::gradient(rank, step, tensor, index);
  };
  const auto ranks = testing::train_ranks(layout, given);
  EXPECT_NE(ranks.workers[1].reports[2].skip_reason, "");
  expect_same(testing::train_virtual(layout, given), ranks, GetParam(), late());
}

std::vector<std::string> all_runs() {
  std::vector<std::string> runs = testing::method_variants();
  runs.insert(runs.end(), {"lion:dense=bf16",
                           "adamw:dense=int4",
                           "diloco:h=2,dense=int8",
                           "adamw:dense=native",
                           "onebit-adam:freeze_steps=2",
                           "lion-cub:bits=1",
                           "lion-cub:shared=no",
                           "lion-cub:feedback=yes",
                           "lion-cub:sync=all",
                           "lion-cub:route=native",
                           "local-ef:h=2",
                           "dsm:h=2",
                           "local-vote:h=3",
                           "lion-cub:granularity=block,shared=no",
                           "diloco:h=4,fragments=2",
                           "local-vote:h=4,fragments=3",
                           "diloco:h=3,delay=1",
                           "local-ef:h=2,delay=1",
                           "local-vote:h=4,fragments=2,delay=3,drift_feedback=0.5",
                           "diloco:drift_feedback=0.5"});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(All, VirtualWorkers, ::testing::ValuesIn(all_runs()),
                         [](const auto& info) {
                           std::string name = testing::test_name(info.param);
                           std::ranges::replace(name, ',', '_');
                           return name;
                         });

}  // namespace
}  // namespace pride::virtual_test
