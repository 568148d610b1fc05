// Workers of a coordinator. Oracle: the same workers as ranks of a world of threads, whose sharded
// route has the same arithmetic. If workers skip rounds: the journal's replay, and each other.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>

#include "optimizer/central_workers.h"
#include "pride/error.h"

namespace pride::central_test {
namespace {

using testing::joined;
using testing::layout;
using testing::replayed_hash;
using testing::run_all;
using testing::TestCoordinator;
using testing::Training;
using testing::Worker;

const std::size_t kFloats = layout().n_coords();

struct Form {
  std::string method;
  std::map<std::string, std::string> options = {};
  std::vector<int> weights = {};
};

std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.method; }

std::string name_of(const ::testing::TestParamInfo<Form>& info) {
  std::string text = info.param.method;
  for (const auto& [name, value] : info.param.options) text += "_" + name + "_" + value;
  return testing::test_name(text + (info.param.weights.empty() ? "" : "_weighted"));
}

OptimizerOptions options_of(const Form& form) {
  OptimizerOptions options;
  options.method = form.method;
  options.options = form.options;
  options.groups[0].weight_decay = 0.1;
  options.bucket_coords = 1000;
  options.seed = 11;
  return options;
}

class CentralWorkers : public ::testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    const auto names = method_names();
    if (std::ranges::count(names, GetParam().method) == 0) GTEST_SKIP() << "built without CBLAS";
  }
};

// A coordinator, which has no parameters, has other bits for ties than ranks have.
bool has_ties(const Form& form) {
  const std::set<std::string> votes = {"dlion-vote", "signum-vote", "dlion-muon",
                                       "turn-muon",  "lion-cub",    "local-vote"};
  return form.weights.empty() && votes.contains(form.method) && !form.options.contains("tie");
}

TEST_P(CentralWorkers, RoundsOfAllWorkersAreTheStepsOfAWorldOfRanks) {
  const bool odd = has_ties(GetParam());  // then so are the voters of each tensor
  for (const int n : odd ? std::vector{1, 3, 5} : std::vector{1, 3, 4}) {
    if (!GetParam().weights.empty() && n != 3) continue;
    Training world{.world = n, .steps = 7, .options = options_of(GetParam())};
    world.weights = GetParam().weights;
    world.unused = testing::unused;
    if (odd && n > 1) {
      world.unused = [n](int rank, std::int64_t step, std::size_t tensor) {
        return (tensor == 3 && (rank + step / 2) % n < 2) || tensor == 4;  // alike in a period of 2
      };
    }
    const auto ranks = testing::train(layout(), world);
    TestCoordinator coordinator(layout(), world.options);
    auto workers = joined(coordinator, world.options, n, world.weights);
    for (auto& worker : workers) worker->unused = world.unused;
    run_all(workers, world.steps);
    for (auto& worker : workers) EXPECT_EQ(worker->hash(), ranks[0].hash) << n << " workers";
    EXPECT_EQ(replayed_hash(coordinator, world.options), ranks[0].hash) << n << " workers";
  }
}

TEST_P(CentralWorkers, AWorkerSendsItsStatedCost) {
  const OptimizerOptions options = options_of(GetParam());
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 2);
  run_all(workers, 4);
  for (auto& worker : workers) {
    for (const StepReport& report : worker->reports) {
      EXPECT_EQ(report.bytes_sent, worker->optimizer().cost(report.step).bytes());
      EXPECT_EQ(report.round.has_value(), report.bytes_sent > 0);
    }
    EXPECT_GT(worker->optimizer().mean_cost().bytes_up, 0U);
    EXPECT_GT(worker->optimizer().routes().at("coordinator"), 1);
  }
}

TEST_P(CentralWorkers, AWorkerThatWasAwayReplaysWhatItMissed) {
  const OptimizerOptions options = options_of(GetParam());
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 3);
  run_all(workers, 4);
  auto away = std::move(workers.back());
  workers.pop_back();
  coordinator.set_voters(2);
  run_all(workers, 12);
  // its next ballot is for a round that closed long ago
  while (away->optimizer().steps_done() < 12) {
    away->reports.push_back(away->step());
    if (!away->reports.back().round) continue;
    EXPECT_FALSE(away->reports.back().round->counted);
    EXPECT_EQ(away->reports.back().round->why_not, "late");
    EXPECT_GT(away->reports.back().round->replayed, 0);
  }
  EXPECT_EQ(away->optimizer().steps_done(), 12);
  EXPECT_EQ(away->hash(), workers[0]->hash());
  EXPECT_EQ(coordinator.parameters_taken, 0);
  workers.push_back(std::move(away));
  coordinator.set_voters(3);
  run_all(workers, 16);
  EXPECT_TRUE(workers[2]->reports.back().round->counted);
  EXPECT_EQ(workers[2]->reports.back().round->voters, 3);
  for (auto& worker : workers) EXPECT_EQ(worker->hash(), workers[0]->hash());
  EXPECT_EQ(replayed_hash(coordinator, options), workers[0]->hash());
}

TEST_P(CentralWorkers, AWorkerGoesOnFromItsCheckpoint) {
  const OptimizerOptions options = options_of(GetParam());
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 2);
  run_all(workers, 5);  // in the middle of a period of two
  const StateDict state = workers[1]->optimizer().save();
  std::vector<float> saved(workers[1]->params().begin(), workers[1]->params().end());
  workers[1]->optimizer().to_common(saved);
  workers.pop_back();
  const auto restart = [&] {
    auto worker = std::make_unique<Worker>(coordinator, 1, options);
    std::ranges::copy(saved, worker->params().begin());
    worker->optimizer().load(state);
    worker->optimizer().to_local(worker->params());
    EXPECT_THROW(worker->step(), InvalidArgument) << "it has not joined";
    worker->join();
    return worker;
  };
  EXPECT_EQ(restart()->optimizer().steps_done(), 5) << "nothing was missed";
  coordinator.set_voters(1);
  run_all(workers, 10);
  workers.push_back(restart());
  EXPECT_EQ(workers[1]->optimizer().steps_done(), 10);
  EXPECT_EQ(workers[1]->hash(), workers[0]->hash());
  coordinator.set_voters(2);
  run_all(workers, 14);
  EXPECT_EQ(workers[1]->hash(), workers[0]->hash());
  EXPECT_EQ(replayed_hash(coordinator, options), workers[0]->hash());
}

TEST_P(CentralWorkers, AWorkerThatIsNewTakesParametersOrRecordsWhicheverAreFewer) {
  const OptimizerOptions options = options_of(GetParam());
  for (const bool many : {false, true}) {
    TestCoordinator coordinator(layout(), options);
    auto workers = joined(coordinator, options, 2);
    coordinator.parameters_every = 10;
    const int period = static_cast<int>(method_info(options.method, 1, options.options).period);
    run_all(workers, (many ? 34 : 12) * period);
    EXPECT_EQ(coordinator.parameters_given, many ? 4 : 2);
    // the same initial parameters: their records lead to the run's
    Worker like(coordinator, 7, options);
    like.join();
    // ten means of gradients are more bytes than parameters and their moments
    const bool takes = many || workers[0]->optimizer().cost(period - 1).bytes_up > kFloats;
    EXPECT_EQ(coordinator.parameters_taken, takes ? 1 : 0);
    EXPECT_EQ(coordinator.records_taken, many ? 4 : takes ? 2 : 12);
    EXPECT_EQ(like.hash(), workers[0]->hash());
    EXPECT_EQ(like.optimizer().steps_done(), workers[0]->optimizer().steps_done());
    // others: only parameters do
    Worker other(coordinator, 8, options, 1);
    other.join();
    EXPECT_EQ(coordinator.parameters_taken, takes ? 2 : 1);
    EXPECT_EQ(other.hash(), workers[0]->hash());
    coordinator.set_voters(1);
    other.steps(other.optimizer().steps_done() + period);
    EXPECT_TRUE(other.reports.back().round->counted);
  }
}

TEST_P(CentralWorkers, AWorkerWithOtherParametersThanMostTakesTheirs) {
  const OptimizerOptions options = options_of(GetParam());
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 3);
  run_all(workers, 4);
  // its memory fails: of local methods in the parameters that all have in common

  for (const StateBuffer& buffer : workers[1]->optimizer().state_buffers()) {
    if (buffer.name == "common") buffer.values[3] += 1;
  }
  workers[1]->params()[3] += 1;
  run_all(workers, 8);
  const auto& reports = workers[1]->reports;
  const auto lost = std::ranges::find_if(
      reports, [](const StepReport& r) { return r.round && r.round->why_not == "other"; });
  ASSERT_NE(lost, reports.end());
  EXPECT_TRUE(lost->round->took_parameters);
  EXPECT_EQ(lost->round->voters, 2);
  for (auto& worker : workers) EXPECT_EQ(worker->hash(), workers[0]->hash());
}

TEST_P(CentralWorkers, AGradientThatIsNotFiniteIsNoVote) {
  OptimizerOptions options = options_of(GetParam());
  options.non_finite = NonFinitePolicy::kSkip;
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 3);
  coordinator.set_voters(2);
  workers[2]->poisoned = true;
  run_all(workers, 4);
  for (const StepReport& report : workers[2]->reports) {
    EXPECT_TRUE(report.skipped);
    EXPECT_NE(report.skip_reason.find("on rank 2"), std::string::npos) << report.skip_reason;
    EXPECT_FALSE(report.round && report.round->counted);
  }
  EXPECT_EQ(workers[0]->reports.back().round->voters, 2);
  for (auto& worker : workers) EXPECT_EQ(worker->hash(), workers[0]->hash());
}

INSTANTIATE_TEST_SUITE_P(
    All, CentralWorkers,
    ::testing::Values(
        Form{"dlion-vote"}, Form{"dlion-vote", {}, {1, 5, 3}},
        Form{"dlion-vote", {{"tie", "zero"}}}, Form{"dlion-avg"}, Form{"dlion-avg", {}, {1, 5, 3}},
        Form{"signum-vote"}, Form{"signum-avg"}, Form{"dlion-muon"}, Form{"dlion-muon-avg"},
        Form{"turn-muon", {{"turns", "4"}}}, Form{"turn-muon", {{"turns", "2"}}, {1, 5, 3}},
        Form{"lion-cub", {{"bits", "1"}, {"sync", "none"}}}, Form{"local-vote", {{"h", "2"}}},
        Form{"local-vote", {{"h", "2"}}, {1, 5, 3}},
        Form{"local-vote", {{"h", "2"}, {"drift_feedback", "0.9"}}},
        Form{"local-vote", {{"h", "1"}, {"local", "lion"}}}, Form{"adamw"},
        Form{"adamw", {{"dense", "bf16"}}}, Form{"lion"}, Form{"adamw", {{"dense", "int4"}}},
        Form{"lion", {{"dense", "int8"}}}, Form{"sgdm", {{"nesterov", "yes"}}},
        Form{"dsm", {{"h", "2"}}}, Form{"diloco", {{"h", "2"}}},
        Form{"diloco", {{"h", "2"}, {"dense", "bf16"}, {"drift_feedback", "0.5"}}},
        Form{"diloco", {{"h", "2"}, {"outer_lr", "1"}, {"outer_beta1", "0"}, {"nesterov", "no"}}}),
    name_of);

}  // namespace
}  // namespace pride::central_test
