// --groups: tensors with methods of their own. Oracles: a loop over an optimizer with the same
// groups, written here; and threads against virtual workers.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "pride/comm/thread_comm.h"
#include "pride/torch/module_tensors.h"
#include "support/coordinator.h"
#include "support/temp_folder.h"
#include "support/texts.h"
#include "train/checkpoint_files.h"
#include "train/feed.h"
#include "train/replica.h"
#include "train/settings/groups.h"
#include "train/small_run.h"
#include "train_names.h"

namespace pride::app::test {
namespace {

namespace fs = std::filesystem;

// Two hidden layers of width 8.
class Deep final : public Model {
 public:
  Deep()
      : embedding_(declare("wte.weight", {8, 1}, Init::normal(1), false)),
        weight_(declare("fc.weight", {8, 8}, Init::normal(0.5))),
        bias_(declare("fc.bias", {8}, Init::constant(0), false)),
        head_(declare("head.weight", {2, 8}, Init::normal(0.5))) {}
  at::Tensor logits(const at::Tensor& input) override {
    const at::Tensor first = at::tanh(at::matmul(input / 8, embedding_.t()));
    return at::matmul(at::tanh(at::matmul(first, weight_.t()) + bias_), head_.t());
  }

 private:
  at::Tensor embedding_, weight_, bias_, head_;
};

std::shared_ptr<Signs> deep_signs() {
  return std::make_shared<Signs>(
      ModelMaker{.name = "deep", .lr_scale = 10, .make = [] { return std::make_unique<Deep>(); }});
}

TrainOptions run_of(const std::string& method, const std::string& groups) {
  TrainOptions options = small_run();
  options.method = method;
  options.groups = groups;
  options.steps = 6;
  return options;
}

TrainOptions with_coordinator(TrainOptions options) {
  options.coordinator = "in this process";
  options.workers = 0;
  options.shards = 2;
  return options;
}

std::string refusal(TrainOptions options) {
  return texts::error_of<InvalidArgument>([&] { run(options, deep_signs()); });
}

// A worker alone; the groups are written out.
TEST(Groups, ARunHasTheBitsOfAnOptimizerWithThem) {
  TrainOptions options =
      run_of("dlion-muon",
             "wte.*, vectors: adamw lr=0.02 beta2=0.9; head.*: lion momentum_dtype=bfloat16");
  options.workers = 1;
  options.schedule = "linear";
  options.weight_decay = 0.1;
  const TrainPlan plan = make_plan(options, 1, deep_signs());
  const std::vector<ParamGroup> peaks = {
      {.lr = 0.05, .weight_decay = 0.1},
      {.lr = 0.02, .beta2 = 0.9, .weight_decay = 0.0, .method = "adamw"},
      {.lr = 1e-3, .method = "lion", .options = {{"momentum_dtype", "bfloat16"}}}};
  const int group_of[] = {1, 0, 1, 2};
  const auto model = make_model(plan, at::kCPU);
  std::vector<NamedParameter> named;
  for (const ModelParameter& p : model->parameters()) {
    named.push_back({.name = p.name, .tensor = p.tensor, .group = group_of[named.size()]});
  }
  ModuleTensors tensors(named);
  const auto alone = make_thread_world(1);
  Optimizer optimizer(*alone.front(), tensors.layout(),
                      {.method = "dlion-muon", .groups = peaks, .seed = options.seed});
  const Participation always(plan, 0, 1);
  Feed feed(plan, 0);
  feed.begin(0, 0, 0, always);
  for (int step = 0; step < 6; ++step) {
    for (int g = 0; g < 3; ++g) {
      const double peak = *peaks[static_cast<std::size_t>(g)].lr;
      optimizer.set_group({.lr = peak * plan.schedule.factor(step)}, g);
    }
    tensors.zero_grad();
    plan.task->loss(*model, feed.next(), 0).backward();
    tensors.step(optimizer);
  }
  EXPECT_EQ(run(options, deep_signs()).param_hash, optimizer.hash(tensors.parameters()));
  options.groups.clear();
  EXPECT_NE(run(options, deep_signs()).param_hash, optimizer.hash(tensors.parameters()));
}

struct Ran {
  std::string log;
  std::uint64_t hash;
};

Ran ran(TrainOptions options, bool as_players) {
  if (as_players) options.virtual_workers = std::exchange(options.workers, 0);
  const auto log = std::make_shared<Log>();
  const std::uint64_t hash = run(options, deep_signs(), {log}).param_hash;
  return {log->text, hash};
}

void expect_same(const TrainOptions& options, const std::string& what) {
  const Ran threads = ran(options, false), players = ran(options, true);
  EXPECT_EQ(players.log, threads.log) << what;
  EXPECT_EQ(players.hash, threads.hash) << what;
}

TEST(Groups, VirtualWorkersTrainAsThreadsDo) {
  expect_same(run_of("dlion-muon", "embeddings,vectors: adamw lr=0.02"), "dlion-muon, adamw");
  TrainOptions options = run_of("dlion-vote", "head.*: signsgd-ef lr=0.1");
  options.participation = 0.6;
  expect_same(options, "participation");
  options = run_of("dlion-vote", "vectors: dlion-avg");
  options.decay_all = true;
  options.clip_norm = 0.1;
  expect_same(options, "decay of all, clipping");
  options = run_of("local-vote", "head.*,vectors: diloco h=3");
  options.method_options = {"h=3"};
  expect_same(options, "local steps");
}

TEST(Groups, AreSectionsOfTheSummary) {
  struct Last final : Observer {
    void on_step(const WorldStep& step) override { sent = step.ranks[0].bytes_sent; }
    std::uint64_t sent = 0;
  };
  const TrainOptions options = run_of("dlion-vote", "head.*,vectors: adamw lr=0.02 beta1=0.8");
  const TrainPlan plan = make_plan(options, 3, deep_signs());
  const auto last = std::make_shared<Last>();
  const TrainResult result = run(options, deep_signs(), {last});
  const auto summary = nlohmann::json::parse(summary_json(plan, result));
  EXPECT_EQ(summary["method"]["name"], "dlion-vote");
  const auto& sections = summary["sections"];
  ASSERT_EQ(sections.size(), 2U);
  EXPECT_EQ(sections[0]["method"], "dlion-vote");
  EXPECT_EQ(sections[1]["method"], "adamw");
  EXPECT_EQ(sections[0]["parameters"], 8 + 64);
  EXPECT_EQ(sections[1]["parameters"], 8 + 16);
  EXPECT_EQ(sections[1]["groups"][0]["lr"], 0.02);
  EXPECT_EQ(sections[1]["groups"][0]["beta1"], 0.8);
  EXPECT_EQ(sections[1]["groups"][0]["beta2"], 0.999) << "adamw's";
  EXPECT_GT(sections[1]["state_bytes"], sections[0]["state_bytes"]) << "padded to 128 each";
  std::uint64_t cost = 0, sent = 0;
  for (const auto& section : sections) {
    cost += section["cost_up"].get<std::uint64_t>() + section["cost_down"].get<std::uint64_t>();
    sent += section["sent_last_step"].get<std::uint64_t>();
    EXPECT_GT(section["sent_last_step"].get<std::uint64_t>(), 0U);
  }
  EXPECT_EQ(cost, result.start.cost.bytes());
  EXPECT_EQ(sent, last->sent);
  TrainOptions plain = options;
  plain.groups.clear();
  const auto without = nlohmann::json::parse(summary_json(plan, run(plain, deep_signs())));
  EXPECT_FALSE(without.contains("sections"));
}

TEST(Groups, OfACheckpointAreThoseOfTheRun) {
  const TempFolder folder;
  TrainOptions options = run_of("dlion-vote", "head.*: adamw lr=0.02; vectors: lion");
  const Ran whole = ran(options, false);
  options.save_every = 3;
  options.out = (folder.path() / "out").string();
  ran(options, false);
  options.resume = (folder.path() / "out/checkpoints/step-3").string();
  options.out.clear();
  options.save_every = 0;
  EXPECT_EQ(ran(options, false).hash, whole.hash);
  EXPECT_EQ(ran(options, true).hash, whole.hash);
  options.groups = "head.*: adamw lr=0.01; vectors: lion";
  EXPECT_NE(ran(options, false).hash, whole.hash) << "a rate may change";
  const std::string saved = "the checkpoint has groups \"head.*: adamw; vectors: lion\", this run ";
  options.groups = "head.*: lion; vectors: lion";
  texts::expect_contains(refusal(options), saved + "\"head.*: lion; vectors: lion\"");
  options.groups.clear();
  texts::expect_contains(refusal(options), saved + "\"\"");
  options.groups = "head.*: adamw momentum_dtype=bfloat16; vectors: lion";
  texts::expect_contains(refusal(options), "momentum_dtype");
}

// Before 0.1.0 had groups, checkpoint.json did not say which.
TEST(Groups, AreNoneOfACheckpointThatDoesNotSay) {
  const TempFolder folder;
  TrainOptions options = run_of("dlion-vote", "");
  const Ran whole = ran(options, false);
  options.save_every = 3;
  options.out = (folder.path() / "out").string();
  ran(options, false);
  const fs::path saved = folder.path() / "out/checkpoints/step-3";
  nlohmann::json facts = read_checkpoint_facts(saved);
  for (const char* key : {"groups", "personal", "participation"}) EXPECT_EQ(facts.erase(key), 1U);
  write_checkpoint_facts(saved, facts);
  options.resume = saved.string();
  options.out.clear();
  options.save_every = 0;
  EXPECT_EQ(ran(options, false).hash, whole.hash);
  options.groups = "vectors: lion";
  texts::expect_contains(refusal(options), "has groups \"\", this run \"vectors: lion\"");
}

TEST(Groups, HaveTheRatesAndStepsOfTheirMethods) {
  TrainOptions options = run_of("dlion-vote", "vectors: adamw; head.*: onebit-adam lr=1");
  options.lr = 0.5;
  options.steps = 50;
  const TrainPlan plan = make_plan(options, 3, deep_signs());
  const auto& groups = plan.optimizer.groups;
  ASSERT_EQ(groups.size(), 6U) << "with and without decay";
  EXPECT_EQ(plan.peak_lr, 0.5);
  for (const int g : {0, 1}) EXPECT_EQ(groups[static_cast<std::size_t>(g)].lr, 0.5);
  for (const int g : {2, 3}) EXPECT_EQ(groups[static_cast<std::size_t>(g)].lr, 10 * 1e-3);
  for (const int g : {4, 5}) {
    EXPECT_EQ(groups[static_cast<std::size_t>(g)].lr, 1);
    EXPECT_EQ(groups[static_cast<std::size_t>(g)].options.at("freeze_steps"), "10");
  }
  ASSERT_EQ(plan.notes.size(), 2U);
  EXPECT_EQ(plan.notes[0],
            "--groups lr=0.01: 10 times the default of adamw, for a model as small as deep");
  EXPECT_EQ(plan.notes[1],
            "onebit-adam: freeze_steps=10, 20 % of 50 steps; in --groups "
            "freeze_steps=N sets another number");
  options.decay_all = true;
  EXPECT_EQ(make_plan(options, 3, deep_signs()).optimizer.groups.size(), 3U);
}

TEST(Groups, RefuseWhatCannotBe) {
  const auto refused = [](const std::string& groups) {
    return refusal(run_of("dlion-vote", groups));
  };
  const char* form = "must be 'WORDS: METHOD [KEY=VALUE]...'";
  EXPECT_EQ(refused("vectors"), concat("--groups: 'vectors': ", form));
  EXPECT_EQ(refused(": lion"), concat("--groups: ': lion': ", form));
  EXPECT_EQ(refused("head.*: lion; vectors:"), concat("--groups: 'vectors:': ", form));
  EXPECT_EQ(refused("vectors: adam"),
            "--groups: 'vectors: adam': no method 'adam'; `pride methods` lists them");
  EXPECT_EQ(
      refused("vectors: lion tie=zero"),
      "--groups: 'vectors: lion tie=zero': no key 'tie'; keys are lr, beta1, beta2, eps, momentum, "
      "weight-decay and the options of lion (`pride methods --method lion`)");
  EXPECT_EQ(refused("vectors: lion lr"), "--groups: 'vectors: lion lr': 'lr' must be key=value");
  for (const char* value : {"x", "-1", "nan", "inf", "1e999", "1 2", ""}) {
    texts::expect_contains(refused(concat("vectors: lion lr=", value)), "--groups: 'vectors: lion");
  }
  texts::expect_contains(refused("vectors: lion lr=1 lr=2"), "'lr' is given twice");
  texts::expect_contains(refused("vectors: lion beta1=2"), "beta1");
  texts::expect_contains(refused("vectors: lion eps=1"), "eps");
  texts::expect_contains(refused("hat.*: lion"), "--groups = 'hat.*': no tensor is named");
  EXPECT_EQ(refused("none: lion"), "--groups: no tensor is one of 'none'");
  EXPECT_EQ(refused("vectors: lion; fc.*: adamw"),
            "--groups: 'fc.*' and entry 1 both take the tensor 'fc.bias'");
  EXPECT_EQ(refused("all: lion"), "--groups: no tensor is left for --method");
  EXPECT_NE(refused("vectors: local-vote"), "") << "another period";
  TrainOptions options = with_coordinator(run_of("dlion-vote", "vectors: lion"));
  options.personal = "fc.*";
  EXPECT_EQ(texts::error_of<InvalidArgument>([&] { make_plan(options, 1, deep_signs()); }),
            "--groups with --personal: personal tensors are trained by one method");
}

TEST(Groups, AreThoseOfACoordinatorsRun) {
  const auto task = deep_signs();
  const TrainOptions options = with_coordinator(run_of("adamw", "vectors: sgdm lr=0.1"));
  const TrainPlan plan = make_plan(options, 1, task);
  testing::TestCoordinator coordinator(layout_of(*task->model().make(), options), plan.optimizer);
  coordinator.settings = plan.run_settings;
  coordinator.voters = 2;
  std::array<TrainResult, 2> results;
  {
    std::vector<std::jthread> threads;
    for (int w = 0; w < 2; ++w) {
      threads.emplace_back([&, w] {
        const auto connect = [&, w] { return coordinator.client(w); };
        results[static_cast<std::size_t>(w)] = train::run_worker(options, connect, task, {});
      });
    }
  }
  EXPECT_EQ(results[0].param_hash, results[1].param_hash);
  EXPECT_NE(results[0].param_hash, run(run_of("adamw", ""), task).param_hash);
  for (const TrainResult& result : results) {
    ASSERT_EQ(result.sections.size(), 2U);
    EXPECT_EQ(result.sections[1].method, "sgdm");
    EXPECT_GT(result.sections[1].bytes_sent, 0U);
  }
  TrainOptions other = options;
  other.groups = "vectors: sgdm lr=0.2";
  EXPECT_EQ(texts::error_of<InvalidArgument>(
                [&] { train::run_worker(other, [&] { return coordinator.client(2); }, task, {}); }),
            "coordinator: another run");
}

}  // namespace
}  // namespace pride::app::test
