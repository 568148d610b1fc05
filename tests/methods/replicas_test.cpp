// Replicas stay bit-identical: over ranks, bucket sizes, overlap and instruction sets.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>

#include "pride/cpu.h"
#include "pride/registry.h"
#include "support/training.h"

namespace pride::replicas_test {
namespace {

using testing::kTensors;
using testing::Training;
using testing::unused;

// Hash of the run, after checking that all ranks have it.
std::uint64_t hash_of(Training run) {
  const auto ranks = testing::train(Layout(kTensors), run);
  for (const auto& rank : ranks) EXPECT_EQ(rank.hash, ranks[0].hash);
  return ranks[0].hash;
}

// A method, perhaps with an option.
class Replicas : public ::testing::TestWithParam<std::string> {
 protected:
  Training run() const {
    Training run{.world = 4, .steps = 6};
    testing::set_method(run.options, GetParam());
    run.options.groups = {{.lr = 0.01, .weight_decay = 0.1}};
    run.options.seed = 5;
    run.unused = unused;
    return run;
  }
};

TEST_P(Replicas, DoNotDependOnBucketSize) {
  Training base = run();
  const std::uint64_t expected = hash_of(base);
  for (const std::size_t coords :
       {std::size_t{1}, std::size_t{64}, std::size_t{200}, std::size_t{1000}}) {
    Training other = base;
    other.options.bucket_coords = coords;
    EXPECT_EQ(hash_of(other), expected) << coords << " coordinates a bucket";
  }
}

TEST_P(Replicas, DoNotDependOnOverlap) {
  Training base = run();
  const std::uint64_t expected = hash_of(base);
  for (const std::size_t coords : {std::size_t{64}, std::size_t{1000}, std::size_t{1} << 20}) {
    Training other = base;
    other.options.overlap = true;
    other.options.bucket_coords = coords;
    EXPECT_EQ(hash_of(other), expected) << coords << " coordinates a bucket";
    other.options.non_finite = NonFinitePolicy::kSkip;
    EXPECT_EQ(hash_of(other), expected) << coords << " coordinates a bucket, applies held";
  }
}

TEST_P(Replicas, DoNotDependOnHowManyBucketsAreOnTheirWay) {
  Training base = run();
  base.options.bucket_coords = 64;
  const auto expected = testing::train(Layout(kTensors), base);
  for (const int threads : {1, 2, 3, 16}) {
    Training other = base;
    other.options.overlap = true;
    other.options.exchange_threads = threads;
    const auto results = testing::train(Layout(kTensors), other);
    EXPECT_EQ(results[0].hash, expected[0].hash) << threads << " exchange threads";
    for (std::size_t r = 0; r < results.size(); ++r) {
      EXPECT_EQ(results[r].reports[1].bytes_sent, expected[r].reports[1].bytes_sent)
          << threads << " exchange threads, rank " << r;
    }
  }
}

TEST_P(Replicas, DoNotDependOnTheInstructionSet) {
  const std::uint64_t expected = hash_of(run());
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    EXPECT_EQ(hash_of(run()), expected) << isa;
  }
  force_isa("");
}

std::vector<std::string> all_runs() {
  std::vector<std::string> runs = testing::method_variants();
  runs.insert(runs.end(),
              {"lion:dense=bf16", "adamw:dense=bf16", "sgdm:dense=bf16", "adamw:dense=int8",
               "lion:dense=int4", "sgdm:dense=int2", "diloco:h=2,dense=int4",
               "onebit-adam:freeze_steps=2", "signsgd-ef:momentum=0.9"});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(All, Replicas, ::testing::ValuesIn(all_runs()),
                         [](const auto& info) { return testing::test_name(info.param); });

// Sums of rounded gradients are not those of float32: the option is not ignored.
TEST(DenseOfFewerBits, ChangesTheResult) {
  Training run{.world = 4, .steps = 6};
  run.options.method = "adamw";
  std::set<std::uint64_t> hashes = {hash_of(run)};
  for (const char* dense : {"bf16", "int8", "int4", "int2"}) {
    run.options.options = {{"dense", dense}};
    EXPECT_TRUE(hashes.insert(hash_of(run)).second) << dense;
  }
}

}  // namespace
}  // namespace pride::replicas_test
