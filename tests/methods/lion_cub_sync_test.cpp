// Lion Cub: selection, schedule and exactness of momenta that are averaged over the ranks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "methods/lion_cub_training.h"
#include "pride/error.h"
#include "pride/registry.h"

namespace pride::lion_cub_sync_test {
namespace {

using cub::gradient;
using cub::kTensors;
using cub::Options;
using cub::params_of;
using cub::training;
using testing::Training;

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
  run.unused = nullptr;
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
  const Training run = sync_training({{"sync_every", "6"}}, 6);
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

// Momenta of each rank by the schedule's formula, loops over blocks of 64: interval j has
// floor(2^(j/2)) steps, 1 1 2 2 4 5 8 ..., and step i of an interval of d averages the blocks from
// floor(B i/d) up to floor(B (i+1)/d).
TEST(LionCub, SynchronisesByTheExponentialSchedule) {
  constexpr std::size_t kBlocks = 48;
  constexpr std::int64_t kIntervals[] = {1, 1, 2, 2, 4, 5};
  const Layout layout({{"w", {64 * 40}}, {"v", {64 * 8}}});
  for (const int world : {2, 3, 5}) {
    Training run = sync_training({{"sync_schedule", "exponential"}, {"sync_doubling", "2"}}, 15);
    run.world = world;
    run.options.bucket_coords = 1024;
    std::vector<std::vector<float>> m(static_cast<std::size_t>(world),
                                      std::vector<float>(64 * kBlocks));
    std::int64_t begin = 0, step = 0;
    for (const std::int64_t d : kIntervals) {
      for (; step < begin + d; ++step) {
        for (std::size_t i = 0; i < m[0].size(); ++i) {
          const std::size_t t = i < 64 * 40 ? 0 : 1;
          float sum = 0;
          for (int r = 0; r < world; ++r) {
            float& mine = m[static_cast<std::size_t>(r)][i];
            const float kept = 0.99f * mine;
            const float fresh =
                static_cast<float>(1 - 0.99) * gradient(r, step, t, t == 0 ? i : i - 64 * 40);
            mine = kept + fresh;
            sum = r == 0 ? mine : sum + mine;
          }
          const auto n = static_cast<std::size_t>(d);
          const auto slice = static_cast<std::size_t>(step - begin);
          const bool due = i / 64 >= kBlocks * slice / n && i / 64 < kBlocks * (slice + 1) / n;
          for (auto& theirs : m) theirs[i] = due ? sum / static_cast<float>(world) : theirs[i];
        }
      }
      begin += d;
    }
    ASSERT_EQ(step, run.steps);
    const auto states = states_of(layout, run);
    for (std::size_t r = 0; r < m.size(); ++r) {
      auto got = states[r].tensors.at("m/w").values;
      const auto& v = states[r].tensors.at("m/v").values;
      got.insert(got.end(), v.begin(), v.end());
      EXPECT_EQ(got, m[r]) << "rank " << r << " of " << world;
    }
  }
}

TEST(LionCub, IsDescribedWithNamesOfTensors) {
  const std::map<std::string, std::string> options = {{"sync", "block.*"}};
  EXPECT_EQ(method_info("lion-cub", 4, options).period, 1);
  EXPECT_EQ(why_host_only("lion-cub", options), "");
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

// The time to match patterns does not explode with the stars.
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

}  // namespace
}  // namespace pride::lion_cub_sync_test
