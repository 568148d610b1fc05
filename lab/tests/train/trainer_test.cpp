// pride::train as a library: a task, a model and an observer of the caller's own.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "pride/error.h"
#include "pride/train/trainer.h"
#include "support/coordinator.h"
#include "support/temp_folder.h"
#include "train/small_run.h"

namespace pride::train {
namespace {

namespace test = app::test;
using test::signs;
using test::Signs;
using test::small_run;

class Watcher final : public Observer {
 public:
  void on_start(const TrainPlan& plan, const RunStart& start) override {
    EXPECT_EQ(plan.world, 3);
    EXPECT_EQ(start.n_parameters, 2);
    events += "start ";
  }
  void on_step(const WorldStep& step) override {
    EXPECT_EQ(step.ranks.size(), 3U);
    sent += step.ranks[1].bytes_sent;
    events += concat(step.step, " ");
  }
  void on_eval(std::int64_t step, const Facts& metrics, double) override {
    EXPECT_EQ(number_of(metrics, "count"), 16);
    events += concat("eval", step, " ");
  }
  void on_end(const TrainResult& result) override {
    EXPECT_EQ(result.sent[1], sent);
    events += "end";
  }

  std::string events;
  std::uint64_t sent = 0;
};

class Library : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::register_line();
    register_task(
        {.name = "signs",
         .about = "signs of numbers",
         .data = "none",
         .default_batch = 4,
         .make = [](const TrainOptions& o) { return std::make_unique<Signs>(*signs(o)); }});
  }
};

TEST_F(Library, SaysWhichLocalStepsNoExchangeFollows) {
  TrainOptions options = small_run();
  options.method = "local-vote";
  options.method_options = {"h=3"};
  const auto task = signs(options);
  ASSERT_EQ(run(options, task).start.notes.size(), 1U);
  EXPECT_NE(run(options, task).start.notes[0].find("the last 1 of 4"), std::string::npos);
  options.method_options = {"h=2"};
  EXPECT_TRUE(run(options, task).start.notes.empty());
}

TEST_F(Library, CountsTheExchangesThatAreOnTheirWayAtItsEnd) {
  TrainOptions options = small_run();
  options.method = "diloco";
  options.method_options = {"h=2"};
  const auto task = signs(options);
  const TrainResult at_once = run(options, task);
  options.method_options = {"h=2", "delay=1"};
  const TrainResult late = run(options, task);
  EXPECT_GT(at_once.sent[0], 0U);
  EXPECT_EQ(late.sent, at_once.sent);
  EXPECT_EQ(late.received, at_once.received);
}

TEST_F(Library, TrainsATaskOfItsOwnAndTellsItsObservers) {
  const auto watcher = std::make_shared<Watcher>();
  const TrainResult result = run(small_run(), signs(small_run()), {watcher});
  EXPECT_EQ(watcher->events, "start 1 2 eval2 3 4 eval4 end");
  EXPECT_EQ(result.steps, 4);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(number_of(result.metrics, "accuracy"), 1);
  EXPECT_TRUE(has_fact(result.metrics, "train_loss"));
}

TEST_F(Library, KnowsWhatWasRegisteredByItsName) {
  TrainOptions options = small_run();
  const std::uint64_t hash = run(options, signs(options)).param_hash;
  options.task = "signs";
  options.model = "line";
  EXPECT_EQ(run(options).param_hash, hash);
  options.model = "vit-small";
  test::expect_error<InvalidArgument>([&] { run(options); },
                                      {"--model vit-small: for signs", "line"});
  test::expect_error<InvalidArgument>([] { register_task({.name = "signs"}); }, {"already"});
  test::expect_error<InvalidArgument>([] { register_model({.name = "line"}); }, {"already"});
}

TEST_F(Library, WritesAndRemovesNothingWithoutAFolder) {
  TrainOptions options = small_run();
  options.overwrite = true;
  const auto task = signs(options);
  test::expect_error<InvalidArgument>([&] { run(options, task, {json_lines()}); }, {"options.out"});
  test::expect_error<InvalidArgument>([&] { run(options, task, {tensorboard_events()}); },
                                      {"options.tensorboard"});
}

TEST_F(Library, ReplacesAnOldRunWhoeverObserves) {
  const test::TempFolder folder;
  TrainOptions options = small_run();
  const auto task = signs(options);
  options.out = (folder.path() / "run").string();
  options.save_every = 2;
  const auto lines = json_lines();
  run(options, task, {lines});
  options.overwrite = true;
  options.steps = 2;
  run(options, task);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run" / "checkpoints" / "step-4"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run" / "summary.json"));
  run(options, task, {lines});
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "run" / "summary.json")) << "a second run";
}

// In the place of a full disk: a file where the folder of checkpoints should be, for some steps.
class Blocks final : public Observer {
 public:
  Blocks(std::filesystem::path folder, std::int64_t from, std::int64_t until)
      : folder_(std::move(folder)), from_(from), until_(until) {}
  void on_step(const WorldStep& step) override {
    if (step.step != from_ && step.step != until_) return;
    std::filesystem::remove_all(folder_);
    if (step.step == from_) std::ofstream(folder_) << "full";
  }
  void on_notice(const std::string& text) override { notices += text + "\n"; }
  void on_end(const TrainResult& result) override { ended_after = result.steps; }
  std::string notices;
  std::int64_t ended_after = -1;

 private:
  std::filesystem::path folder_;
  std::int64_t from_, until_;
};

TEST_F(Library, GoesOnWithoutACheckpointThatCannotBeWrittenButForTheLast) {
  const test::TempFolder folder;
  TrainOptions options = small_run();
  const auto task = signs(options);
  options.out = (folder.path() / "run").string();
  options.save_every = 2;
  options.steps = 8;
  const auto checkpoints = folder.path() / "run" / "checkpoints";
  const auto blocks = std::make_shared<Blocks>(checkpoints, 3, 5);
  EXPECT_EQ(run(options, task, {blocks}).steps, 8);
  test::expect_contains(blocks->notices, "warning: step-4 was not saved: ");
  EXPECT_FALSE(std::filesystem::exists(checkpoints / "step-4"));
  EXPECT_TRUE(std::filesystem::exists(checkpoints / "step-8"));
  options.overwrite = true;
  const auto last = std::make_shared<Blocks>(checkpoints, 7, 9);
  test::expect_error<DataError>(
      [&] {
        run(options, task, {json_lines(), last});
      },
      {"step-8 was not saved: "});
  EXPECT_EQ(last->ended_after, 8) << "the results come first";
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "run" / "summary.json"));
  options.quiet = true;
  Observers quiet = observers_for(options);
  quiet.push_back(std::make_shared<Blocks>(checkpoints, 3, 5));
  ::testing::internal::CaptureStderr();
  run(options, task, quiet);
  test::expect_contains(::testing::internal::GetCapturedStderr(),
                        "warning: step-4 was not saved: ");
}

// In the place of a full disk: no file of this process may grow beyond a part of the next record.
class Full final : public Observer {
 public:
  explicit Full(std::filesystem::path file) : file_(std::move(file)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_IGN);
  }
  ~Full() override { std::signal(SIGXFSZ, SIG_DFL); }
  void on_step(const WorldStep& step) override {
    rlimit limit = before_;
    if (step.step == 3) limit.rlim_cur = std::filesystem::file_size(file_) + 10;
    if (step.step == 3 || step.step == 5) setrlimit(RLIMIT_FSIZE, &limit);
  }
  void on_notice(const std::string& text) override { notices += text + "\n"; }
  std::string notices;

 private:
  std::filesystem::path file_;
  rlimit before_{};
};

TEST_F(Library, GoesOnWithoutRecordsThatCannotBeWritten) {
  const test::TempFolder folder;
  TrainOptions options = small_run();
  options.out = (folder.path() / "run").string();
  options.steps = 8;
  const auto file = folder.path() / "run" / "metrics.jsonl";
  const auto full = std::make_shared<Full>(file);
  EXPECT_EQ(run(options, signs(options), {json_lines(), full}).steps, 8);
  test::expect_contains(full->notices,
                        "metrics.jsonl: cannot write: File too large; the run goes on");
  EXPECT_EQ(std::ranges::count(full->notices, '\n'), 1) << "once";
  std::string steps;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record["type"] == "step") steps += concat(record["step"].get<int>(), " ");
  }
  EXPECT_EQ(steps, "1 2 3 6 7 8 ");
}

TEST_F(Library, RefusesSettingsBeforeAnyThreadStarts) {
  TrainOptions options = small_run();
  options.batch = 30;
  test::expect_error<InvalidArgument>([&] { run(options, signs(options)); },
                                      {"--batch 30: a worker has 21 training samples"});
  options.batch = 4;
  options.dtype = "int4";
  test::expect_error<InvalidArgument>([&] { run(options, signs(options)); },
                                      {"--dtype int4: must be one of float32, bfloat16"});
}

// --- As workers of a coordinator. ----------------------------------------------------------------

using ::pride::testing::TestCoordinator;

TrainOptions run_by_coordinator() {
  TrainOptions options = small_run();
  options.method = "dlion-vote";
  options.workers = 0;
  options.coordinator = "in this process";
  options.shards = 2;
  return options;
}

struct CoordinatedRun {
  explicit CoordinatedRun(const TrainOptions& options)
      : task(signs(options)),
        plan(make_plan(options, 1, task)),
        coordinator(layout_of(*task->model().make()), plan.optimizer) {
    coordinator.settings = plan.run_settings;
  }

  TrainResult run_worker(const TrainOptions& options, int number) {
    return train::run_worker(
        options, [&] { return coordinator.client(number); }, task, observers_for(options));
  }

  std::shared_ptr<Signs> task;
  TrainPlan plan;
  TestCoordinator coordinator;
};

TEST_F(Library, WorkersOfACoordinatorTrainAsThoseOfAWorldDo) {
  TrainOptions options = run_by_coordinator();
  options.quiet = true;
  CoordinatedRun two(options);
  two.coordinator.voters = 2;
  std::vector<TrainResult> results(2);
  {
    std::jthread other([&] { results[1] = two.run_worker(options, 1); });
    results[0] = two.run_worker(options, 0);
  }
  EXPECT_EQ(results[0].steps_run, 4);
  EXPECT_EQ(results[0].start.transport, "coordinator");
  EXPECT_EQ(results[0].start.routes.at("coordinator"), 1);
  TrainOptions world = options;
  world.workers = 2;
  world.coordinator.clear();
  world.shards.reset();
  const TrainResult ranks = run(world, two.task);
  EXPECT_EQ(results[0].param_hash, ranks.param_hash);
  EXPECT_EQ(results[1].param_hash, ranks.param_hash);
}

TEST_F(Library, AWorkerOfACoordinatorResumesInTheRoundThatIsOpen) {
  const test::TempFolder folder;
  TrainOptions options = run_by_coordinator();
  options.quiet = true;
  options.save_every = 2;
  options.out = (folder.path() / "run").string();
  CoordinatedRun alone(options);
  const TrainResult whole = alone.run_worker(options, 0);
  std::ifstream metrics(folder.path() / "run" / "metrics.jsonl");
  std::string line;
  std::getline(metrics, line);
  EXPECT_NE(line.find("\"round\":0,\"voters\":1,\"counted\":true"), std::string::npos) << line;

  options.resume = (folder.path() / "run" / "checkpoints" / "step-2").string();
  options.out.clear();
  options.save_every = 0;
  const TrainResult rest = alone.run_worker(options, 0);
  EXPECT_EQ(rest.start.step, 2);
  EXPECT_EQ(rest.steps_run, 0) << "the run was at its end";
  EXPECT_EQ(rest.param_hash, whole.param_hash);

  options.resume.clear();
  const TrainResult late = alone.run_worker(options, 1);
  EXPECT_EQ(late.steps_run, 0);
  EXPECT_EQ(late.steps, 4) << "the run's, not this worker's";
  EXPECT_EQ(late.param_hash, whole.param_hash);
  EXPECT_NE(late.start.notes.back().find("which is at its end (step 4)"), std::string::npos);
}

TEST_F(Library, AWorkerHasTheLengthThatItsCoordinatorSays) {
  struct Rates final : Observer {
    void on_step(const WorldStep& step) override {
      rates.push_back(step.lr);
      if (!step.note.empty()) notes.push_back(step.note);
    }
    std::vector<double> rates;
    std::vector<std::string> notes;
  };
  TrainOptions options = run_by_coordinator();
  options.quiet = true;
  options.schedule = "linear";
  options.lr = 1;
  CoordinatedRun longer(options);
  longer.coordinator.length = [](std::int64_t open) {
    return open < 2 ? RunLength{.steps = 4, .last_step = 4}
                    : RunLength{.steps = 10, .last_step = 5};
  };
  const auto seen = std::make_shared<Rates>();
  const TrainResult result =
      train::run_worker(options, [&] { return longer.coordinator.client(0); }, longer.task, {seen});
  EXPECT_EQ(result.steps, 5);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(seen->rates, (std::vector<double>{1, 0.75, 0.8, 0.7, 0.6}));
  EXPECT_EQ(seen->notes,
            std::vector<std::string>{"the coordinator ends the run after step 5 of 10"});
}

TEST_F(Library, RefusesSettingsThatAWorkerOfACoordinatorCannotHave) {
  const TrainOptions good = run_by_coordinator();
  CoordinatedRun any(good);
  const auto refused = [&](const std::function<void(TrainOptions&)>& change,
                           const std::string& text) {
    TrainOptions options = good;
    change(options);
    test::expect_error<InvalidArgument>([&] { any.run_worker(options, 0); }, {text});
  };
  refused([](auto& o) { o.workers = 3; }, "one worker");
  refused([](auto& o) { o.shard = 2; }, "--shard 2 of 2");
  refused([](auto& o) { o.sharding = "dirichlet:1", o.shards.reset(); }, "--shards");
  refused([](auto& o) { o.sharding = "dirichlet:1", o.vote_weight = "samples"; }, "--shard");
  refused([](auto& o) { o.method = "terngrad"; }, "coordinator cannot serve");
  refused([](auto& o) { o.schedule = "linear"; }, "another run");
  for (const char* line : {"\nlr=", "\nschedule=cosine\n", "\nshards=2\n"}) {
    EXPECT_NE(any.plan.run_settings.find(line), std::string::npos) << line;
  }
  TrainOptions parts = good;
  parts.coordinator.clear();
  test::expect_error<InvalidArgument>([&] { run(parts, any.task); },
                                      {"--shards needs --coordinator"});
}

}  // namespace
}  // namespace pride::train
