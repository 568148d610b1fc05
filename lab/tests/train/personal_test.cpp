// Personal tensors of a coordinator's workers. Oracle: a run without them, whose one worker takes
// the same steps for every tensor; an undisturbed run for one that was killed and resumed.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "pride/error.h"
#include "pride/train/model.h"
#include "pride/train/trainer.h"
#include "program/io/safetensors.h"
#include "rules/orthogonalise.h"
#include "support/coordinator.h"
#include "support/temp_folder.h"
#include "torch/fake_gpu.h"
#include "train/personal.h"
#include "train/replica.h"
#include "train/signs.h"

namespace pride::train {
namespace {

namespace test = app::test;
using ::pride::testing::TestCoordinator;

// Its head is declared first, so that it has to be moved behind the body.
class Bent final : public Model {
 public:
  Bent()
      : head_(declare("head.weight", {2, 5}, Init::normal(0.3))),
        bias_(declare("head.bias", {2}, Init::constant(0), false)),
        body_(declare("body.weight", {5, 1}, Init::normal(1))) {}
  at::Tensor logits(const at::Tensor& input) override {
    return at::matmul(at::tanh(at::matmul(input, body_.t())), head_.t()) + bias_;
  }

 private:
  at::Tensor head_, bias_, body_;
};

std::shared_ptr<Signs> signs() {
  const ModelMaker model{.name = "bent", .make = [] { return std::make_unique<Bent>(); }};
  return std::make_shared<Signs>(model, /*border=*/0.8, /*scale=*/16);
}

TrainOptions options_of(const std::string& method, std::vector<std::string> more = {}) {
  TrainOptions options{.task = "", .method = method, .method_options = std::move(more)};
  options.lr = 0.05;
  options.batch = 1;  // signs of gradients differ
  options.steps = 12;
  options.schedule = "linear";
  options.coordinator = "in this process";
  options.shards = 2;
  options.personal = "head.*";
  options.quiet = true;
  return options;
}

using Tensors = std::map<std::string, SafeTensor>;

// Runs of two workers, or of one, into folders of their own.
class PersonalRuns {
 public:
  explicit PersonalRuns(const TrainOptions& options, int workers = 2)
      : task_(signs()), workers_(workers) {
    std::size_t n = 0;
    const auto model = task_->model().make();
    ModuleTensors tensors(personal_last(named_parameters(*model), "head.*", n));
    const TrainPlan plan = make_plan(options, 1, task_);
    const OptimizerOptions& of_run = plan.optimizer;
    const Layout common = common_layout(tensors.layout(), n, of_run);
    EXPECT_EQ(common.tensors().size(), 1U);
    coordinator_ = std::make_unique<TestCoordinator>(common, of_run);
    coordinator_->voters = workers;
    coordinator_->settings = plan.run_settings;
  }

  // killed_in: the round in which both are killed; -1: none
  std::vector<TrainResult> run(TrainOptions options, std::int64_t killed_in = -1,
                               bool resume = false) {
    std::vector<TrainResult> results(static_cast<std::size_t>(workers_));
    coordinator_->before_vote = [killed_in](std::int64_t round) {
      if (round == killed_in) throw CommError("killed");
    };
    std::vector<std::jthread> threads;
    for (int w = 0; w < workers_; ++w) {
      options.out = out(w).string();
      options.save_every = 4;
      if (resume) options.resume = options.out;
      threads.emplace_back([this, options, w, &results] {
        const auto connect = [&] { return coordinator_->client(w); };
        try {
          results[static_cast<std::size_t>(w)] =
              run_worker(options, connect, task_, observers_for(options));
        } catch (const CommError& e) {
          EXPECT_STREQ(e.what(), "killed");
        }
      });
    }
    threads.clear();
    return results;
  }
  std::shared_ptr<CoordinatorClient> client() { return coordinator_->client(0); }
  std::filesystem::path out(int worker) const { return folder_.path() / concat("w", worker); }
  Tensors model(int worker) const { return read_safetensors(out(worker) / "model.safetensors"); }

 private:
  test::TempFolder folder_;
  std::shared_ptr<Signs> task_;
  int workers_;
  std::unique_ptr<TestCoordinator> coordinator_;
};

struct Form {
  std::string method;
  std::vector<std::string> options = {};
};

std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.method; }

class Personal : public ::testing::TestWithParam<Form> {};

TEST_P(Personal, TensorsStayWithTheirWorkerAndTheOthersAreEqual) {
  const TrainOptions options = options_of(GetParam().method, GetParam().options);
  PersonalRuns runs(options);
  const auto results = runs.run(options);
  EXPECT_EQ(results[0].param_hash, results[1].param_hash);
  EXPECT_EQ(results[0].start.n_parameters, 17);
  const Tensors a = runs.model(0), b = runs.model(1);
  ASSERT_EQ(a.size(), 3U);
  EXPECT_EQ(a.at("body.weight").values, b.at("body.weight").values);
  EXPECT_NE(a.at("head.weight").values, b.at("head.weight").values);
  EXPECT_NE(a.at("head.bias").values, std::vector<float>(2, 0)) << "it was trained";
  const auto& notes = results[0].start.notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("2 of 3 tensors, 12 parameters: head.weight, head.bias") != std::string::npos;
  })) << notes[0];
}

TEST_P(Personal, TensorsOfAKilledWorkerGoOnFromItsCheckpoint) {
  const TrainOptions options = options_of(GetParam().method, GetParam().options);
  PersonalRuns undisturbed(options), disturbed(options);
  const auto given = make_plan(options, 1, signs()).optimizer.options;
  const std::int64_t period = method_info(options.method, 1, given).period;
  const auto whole = undisturbed.run(options);
  disturbed.run(options, 4 / period);
  const auto rest = disturbed.run(options, -1, true);
  for (int w = 0; w < 2; ++w) {
    const auto i = static_cast<std::size_t>(w);
    EXPECT_EQ(rest[i].start.step, 4);
    EXPECT_EQ(rest[i].param_hash, whole[i].param_hash);
    const Tensors got = disturbed.model(w), want = undisturbed.model(w);
    for (const auto& [name, tensor] : want) EXPECT_EQ(got.at(name).values, tensor.values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Personal,
    ::testing::Values(Form{"dlion-vote"}, Form{"adamw"}, Form{"local-vote", {"h=2"}},
                      Form{"diloco",
                           {"h=4", "outer_lr=1", "outer_beta1=0", "nesterov=no", "local=sgdm"}}),
    [](const auto& info) {
      std::string name = info.param.method;
      std::ranges::replace(name, '-', '_');
      return name;
    });

// On the GPU that the tests play, as on the host: a coordinator's run, and personal tensors.
TEST_P(Personal, TensorsLieOnAGpuTogetherWithTheOthers) {
  TrainOptions options = options_of(GetParam().method, GetParam().options);
  options.clip_norm = 0.5;
  PersonalRuns host(options), gpu(options);
  const auto want = host.run(options);
  const FakeGpu fake;
  const auto got = gpu.run(options);
  for (int w = 0; w < 2; ++w) {
    const auto i = static_cast<std::size_t>(w);
    EXPECT_EQ(got[i].param_hash, want[i].param_hash);
    EXPECT_EQ(std::ranges::count(got[i].start.notes, "the method runs on cuda:0 (Fake A)"), 1);
    const Tensors there = gpu.model(w), here = host.model(w);
    for (const auto& [name, tensor] : here) EXPECT_EQ(there.at(name).values, tensor.values) << name;
  }
}

// AdamW works by coordinate: with one worker it is all one which tensors are whose.
TEST(PersonalTensors, TakeTheStepsThatTheMethodWouldTake) {
  for (const double clip : {0.0, 0.01}) {
    TrainOptions options = options_of("adamw");
    options.shards.reset();
    options.clip_norm = clip;
    PersonalRuns one(options, 1);
    one.run(options);
    const test::TempFolder folder;
    TrainOptions plain = options;
    plain.coordinator.clear();
    plain.personal.clear();
    plain.workers = 1;
    plain.sharding = "replicate";
    plain.out = (folder.path() / "plain").string();
    run(plain, signs(), observers_for(plain));
    const Tensors got = one.model(0),
                  want = read_safetensors(folder.path() / "plain" / "model.safetensors");
    for (const auto& [name, tensor] : want) EXPECT_EQ(got.at(name).values, tensor.values) << name;
  }
}

// And its matrices: "bias" names personal tensors only.
TEST(PersonalTensors, HaveTheMomentumOfTheLocalRule) {
  if (!rules::has_blas()) GTEST_SKIP() << "this build has no CBLAS";
  std::vector<SafeTensor> heads;
  for (const double momentum : {0.95, 0.5}) {
    TrainOptions options = options_of("local-muon", {"h=2", "local=muon", "not_matrices=bias"});
    options.momentum = momentum;
    PersonalRuns one(options, 1);
    one.run(options);
    heads.push_back(one.model(0).at("head.weight"));
  }
  EXPECT_NE(heads[0].values, heads[1].values);
}

TEST(PersonalTensors, OfACheckpointAreThoseOfItsRun) {
  TrainOptions options = options_of("dlion-vote");
  PersonalRuns one(options, 1);
  one.run(options);
  options.resume = one.out(0).string();
  const auto refused = [&](const std::string& personal, const std::string& text) {
    options.personal = personal;
    test::expect_error<InvalidArgument>(
        [&] {
          run_worker(
              options, [&] { return one.client(); }, signs());
        },
        {text});
  };
  refused("head.bias", "the checkpoint has personal \"head.*\", this run \"head.bias\"");
  refused("", "the checkpoint has personal \"head.*\", this run \"\"");
}

TEST(PersonalTensors, AreRefusedWhereTheyAreNoneOrAllOrNobodyElseIsThere) {
  TrainOptions alone = options_of("dlion-vote");
  alone.coordinator.clear();
  alone.shards.reset();
  test::expect_error<InvalidArgument>([&] { run(alone, signs()); },
                                      {"--personal needs --coordinator"});
  const auto model = signs()->model().make();
  const auto named = [&](const std::string& patterns) {
    std::size_t n = 0;
    personal_last(named_parameters(*model), patterns, n);
  };
  test::expect_error<InvalidArgument>([&] { named("nose.*"); }, {"no tensor is named by 'nose.*'"});
  test::expect_error<InvalidArgument>([&] { named("none"); }, {"matches no tensor"});
  test::expect_error<InvalidArgument>([&] { named("head.*,body.*"); }, {"matches every tensor"});
  named("head.*");
}

}  // namespace
}  // namespace pride::train
