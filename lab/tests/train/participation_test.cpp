// Workers that sit out rounds: who takes part, what the others compute, and what they have then.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pride/error.h"
#include "support/temp_folder.h"
#include "train/small_run.h"
#include "train_names.h"

namespace pride::app::test {
namespace {

// Counts who took part, step by step.
class Attendance final : public Observer {
 public:
  void on_step(const WorldStep& step) override {
    std::string who;
    double sum = 0;
    for (std::size_t r = 0; r < step.ranks.size(); ++r) {
      if (step.ranks[r].absent != 0) continue;
      who += std::to_string(r);
      sum += step.ranks[r].loss;
    }
    EXPECT_DOUBLE_EQ(step.mean_loss(), sum / static_cast<double>(who.size()));
    steps.push_back(who);
  }
  std::vector<std::string> steps;
};

TrainOptions run_of_a_share(const char* method, double share, const char* absent = "replay") {
  TrainOptions options = small_run();
  options.method = method;
  options.participation = share;
  options.absent = absent;
  options.steps = 12;
  return options;
}

TrainResult run_signs(const TrainOptions& options, const Observers& observers = {}) {
  register_line();
  return run(options, signs(options), observers);
}

TEST(Participation, AShareOfTheWorkersTakesPartInARoundAndTheOthersComputeNothing) {
  for (const auto& [share, drawn] : {std::pair(0.1, 1), {0.34, 1}, {0.6, 2}, {1.0, 3}}) {
    const auto attendance = std::make_shared<Attendance>();
    batches_made = 0;
    run_signs(run_of_a_share("dlion-vote", share), {attendance});  // checks that replicas are equal
    EXPECT_EQ(batches_made, 12 * drawn);
    ASSERT_EQ(attendance->steps.size(), 12U);
    std::set<std::string> drawn_sets(attendance->steps.begin(), attendance->steps.end());
    for (const std::string& who : attendance->steps) {
      EXPECT_EQ(who.size(), static_cast<std::size_t>(drawn));
    }
    EXPECT_EQ(drawn_sets.size(), drawn == 3 ? 1U : 3U) << "everybody has a turn";
  }
}

TEST(Participation, WhoTakesPartIsDrawnOnceARoundOfLocalSteps) {
  TrainOptions options = run_of_a_share("local-vote", 0.34);
  options.method_options = {"h=3"};
  const auto attendance = std::make_shared<Attendance>();
  run_signs(options, {attendance});
  for (std::size_t step = 0; step < 12; ++step) {
    EXPECT_EQ(attendance->steps[step], attendance->steps[step - step % 3]) << step;
  }
}

// All samples in every batch, so that all workers have one gradient, but for the order of its sums.
TEST(Participation, InAMeanThoseThatSatOutCountAsZero) {
  TrainOptions options = run_of_a_share("sgdm", 1);
  options.sharding = "replicate";
  options.batch = 64;
  const double all = number_of(run_signs(options).metrics, "loss");
  options.participation = 0.34;
  const double third = number_of(run_signs(options).metrics, "loss");
  EXPECT_GT(third, 2 * all);
  options.lr = 3 * *options.lr;
  EXPECT_NEAR(number_of(run_signs(options).metrics, "loss"), all, 1e-5);
}

TEST(Participation, ARunOfSomeOfTheWorkersResumesToTheSameBits) {
  const TempFolder folder;
  TrainOptions options = run_of_a_share("lion", 0.34);
  options.mixup = 0.5;  // its draws are by the step, whoever takes part
  const std::uint64_t whole = run_signs(options).param_hash;
  options.out = (folder.path() / "out").string();
  options.save_every = 5;
  run_signs(options);
  options.resume = (folder.path() / "out/checkpoints/step-5").string();
  options.out.clear();
  options.save_every = 0;
  EXPECT_EQ(run_signs(options).param_hash, whole);
  options.participation = 0.6;
  expect_error<InvalidArgument>([&] { run_signs(options); }, {"participation"});
}

TEST(Participation, WorkersThatMissResultsGoTheirOwnWay) {
  const TrainResult replayed = run_signs(run_of_a_share("dlion-vote", 0.6));
  const TrainResult stale = run_signs(run_of_a_share("dlion-vote", 0.6, "stale"));
  EXPECT_NE(stale.param_hash, replayed.param_hash);
  EXPECT_EQ(run_signs(run_of_a_share("dlion-vote", 1, "stale")).param_hash,
            run_signs(run_of_a_share("dlion-vote", 1)).param_hash);
}

TEST(Participation, RefusesWhatItCannotBe) {
  const auto refused = [](const char* method, const auto& change, const char* why) {
    TrainOptions options = run_of_a_share(method, 0.5);
    change(options);
    expect_error<InvalidArgument>([&] { run_signs(options); }, {why});
  };
  refused(
      "lion", [](auto& o) { o.participation = 0; }, "--participation 0");
  refused(
      "lion", [](auto& o) { o.participation = 1.5; }, "--participation 1.5");
  refused(
      "lion", [](auto& o) { o.absent = "late"; }, "--absent late");
  refused(
      "lion", [](auto& o) { o.absent = "stale", o.save_every = 2; }, "--save-every");
  refused(
      "local-vote", [](auto& o) { o.absent = "stale"; }, "local steps");
  refused(
      "dlion-vote",
      [](auto& o) {
        o.coordinator = "127.0.0.1:1", o.workers = 1, o.participation = 1, o.absent = "stale";
      },
      "--coordinator");
  refused(
      "dlion-vote", [](auto& o) { o.coordinator = "127.0.0.1:1", o.workers = 1; }, "--coordinator");
}

}  // namespace
}  // namespace pride::app::test
