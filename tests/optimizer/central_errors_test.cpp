// Refusals of a coordinator's worker and of a journal's replay.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "optimizer/central_workers.h"
#include "pride/error.h"
#include "pride/run_worker.h"
#include "support/texts.h"

namespace pride::central_errors_test {
namespace {

using testing::joined;
using testing::layout;
using testing::run_all;
using testing::TestCoordinator;
using testing::Worker;

OptimizerOptions options_of(const char* method, std::map<std::string, std::string> options = {}) {
  return {.method = method, .options = std::move(options), .bucket_coords = 1000, .seed = 11};
}

TEST(CentralWorker, RefusesWhatItCannotDo) {
  const OptimizerOptions good = options_of("dlion-vote");
  TestCoordinator coordinator(layout(), good);
  const auto refusal = [&](const OptimizerOptions& options) {
    return texts::error_of<InvalidArgument>(
        [&] { RunWorker(coordinator.client(0), layout(), options); });
  };
  OptimizerOptions bad = good;
  bad.nodes = Nodes::of_size(1, 1);
  EXPECT_NE(refusal(bad).find("nodes"), std::string::npos);
  bad = good;
  bad.method = "terngrad";
  EXPECT_NE(refusal(bad).find("coordinator cannot serve"), std::string::npos);
  bad.method = "adamw";
  bad.clip_global_norm = 1;
  EXPECT_NE(refusal(bad).find("clip_global_norm is not supported with a coordinator"),
            std::string::npos);

  Worker worker(coordinator, 0, good);
  EXPECT_THROW(worker.step(), InvalidArgument) << "it has not joined";
  worker.join();
  coordinator.settings = "another model";
  Worker other(coordinator, 1, good);
  coordinator.settings = "";
  EXPECT_THROW(other.join(), InvalidArgument);
  RunWorker replays(nullptr, layout(), good);
  FlatBuffer x(layout().flat_size());
  EXPECT_THROW(replays.join(x.span()), InvalidArgument);
  EXPECT_THROW(replays.step(x.span(), x.span()), InvalidArgument);
}

TEST(CentralWorker, IsStoppedByItsGradientThatIsNotFinite) {
  const OptimizerOptions options = options_of("dlion-vote");
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 1);
  workers[0]->poisoned = true;
  EXPECT_THROW(workers[0]->step(), NonFiniteGradient);
  EXPECT_EQ(coordinator.open_round(), 0);
}

// Its record of round 2 has a changed byte: an error that names the round, and no hang.
TEST(CentralWorker, RefusesADamagedRecord) {
  const OptimizerOptions options = options_of("dlion-vote");
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 1);
  coordinator.tamper = [](std::int64_t round, std::vector<std::byte>& record) {
    if (round == 2) record[record.size() / 2] ^= std::byte{4};
  };
  workers[0]->steps(2);
  texts::expect_error<CommError>([&] { workers[0]->step(); }, {"round 2"});
  EXPECT_THROW(workers[0]->step(), InvalidArgument) << "no further steps";
}

TEST(CentralWorker, RefusesARecordOfAnotherRound) {
  const OptimizerOptions options = options_of("dlion-avg");
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 1);
  workers[0]->steps(1);
  const std::vector<std::byte> first = coordinator.records()[0];
  coordinator.tamper = [&](std::int64_t, std::vector<std::byte>& record) { record = first; };
  EXPECT_THROW(workers[0]->step(), CommError);
}

void interrupt(std::int64_t round, std::vector<std::byte>&) {
  if (round == 2) throw CommError("interrupted");
}

// The state is that before the step, with the step's gradient in its momentum.
TEST(CentralWorker, CanBeSavedAfterAWaitThatWasInterrupted) {
  for (const OptimizerOptions& options :
       {options_of("dlion-vote"), options_of("adamw"), options_of("local-vote", {{"h", "2"}})}) {
    SCOPED_TRACE(options.method);
    TestCoordinator coordinator(layout(), options);
    auto workers = joined(coordinator, options, 1);
    Worker& worker = *workers[0];
    const std::int64_t period = worker.optimizer().method().period;
    worker.steps(3 * period - 1);
    const std::uint64_t before = worker.hash();
    coordinator.tamper = interrupt;
    EXPECT_THROW(worker.step(), CommError);
    EXPECT_EQ(worker.hash(), before);
    EXPECT_THROW(worker.step(), InvalidArgument) << "no further steps";
    const StateDict saved = worker.optimizer().save();
    EXPECT_EQ(saved.scalars.at("step"), std::to_string(3 * period - 1));
    coordinator.tamper = nullptr;
    worker.optimizer().load(saved);
    worker.join();
    worker.steps(5 * period);
    EXPECT_EQ(worker.hash(), testing::replayed_hash(coordinator, options));
  }
}

TEST(CentralWorker, CountsTheRoundsThatItReplayedBeforeAnInterrupt) {
  const OptimizerOptions options = options_of("dlion-vote");
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 1);
  workers[0]->steps(4);
  Worker late(coordinator, 1, options);
  coordinator.tamper = interrupt;
  EXPECT_THROW(late.join(), CommError);
  EXPECT_EQ(late.optimizer().steps_done(), 2);
  const StateDict saved = late.optimizer().save();
  coordinator.tamper = nullptr;
  late.optimizer().load(saved);
  late.join();
  EXPECT_EQ(late.hash(), workers[0]->hash());
}

TEST(Replay, RefusesEveryChangedByteAndChangesNothing) {
  const OptimizerOptions options = options_of("local-vote", {{"h", "2"}});
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 2);
  run_all(workers, 4);
  const auto records = coordinator.records();
  RunWorker shadow(nullptr, layout(), options);
  FlatBuffer x(layout().flat_size());
  testing::fill(layout(), x, testing::initial);
  const std::uint64_t before = param_hash(layout(), x.span());
  EXPECT_THROW(shadow.replay(x.span(), records[1]), CommError) << "round 1 before round 0";
  std::vector<std::byte> bytes = records[0];
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x21};
    EXPECT_THROW(shadow.replay(x.span(), bytes), CommError) << "byte " << i;
    bytes[i] ^= std::byte{0x21};
  }
  EXPECT_EQ(param_hash(layout(), x.span()), before);
  EXPECT_EQ(shadow.steps_done(), 0);
  shadow.replay(x.span(), bytes);
  EXPECT_EQ(shadow.steps_done(), 2);
  EXPECT_THROW(shadow.replay(x.span(), bytes), CommError) << "twice";
  x.span()[0] += 1;
  // the parameters in common are the optimizer's own: a caller's copy is no source
  shadow.replay(x.span(), records[1]);
  EXPECT_EQ(param_hash(layout(), x.span()), workers[0]->hash());
}

TEST(Replay, RefusesOtherParameters) {
  const OptimizerOptions options = options_of("dlion-vote");
  TestCoordinator coordinator(layout(), options);
  auto workers = joined(coordinator, options, 1);
  workers[0]->steps(1);
  RunWorker shadow(nullptr, layout(), options);
  FlatBuffer x(layout().flat_size());
  EXPECT_THROW(shadow.replay(x.span(), coordinator.records()[0]), CommError);
}

}  // namespace
}  // namespace pride::central_errors_test
