// `pride train --task fewshot`: the loss of a step, and learning in whole runs.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "fewshot/question_files.h"
#include "pride/registry.h"
#include "pride/train/task.h"
#include "support/run_here.h"
#include "train/evaluation.h"
#include "train_names.h"

namespace pride::app {
namespace {

using nlohmann::json;
using namespace test;

class Finetune : public ::testing::Test {
 protected:
  Finetune() {
    folder_.write("task.jsonl", records(40));
    folder_.write("few.jsonl", records(10, "bear"));
    folder_.write("few.train.jsonl", records(8));
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  std::vector<std::string> small(const std::vector<std::string>& more) const {
    return plus(words("train --task fewshot --layers 2 --heads 2 --width 32 --context 120 --quiet "
                      "--workers 2 --batch 4 --json"),
                more);
  }
  json train(const std::vector<std::string>& more) const { return json_of(run_here(small(more))); }
  json evaluate(const std::vector<std::string>& more) const {
    return json_of(run_here(plus({"evaluate", "--quiet", "--json"}, more)));
  }
  TrainOptions options(const std::string& data) const {
    TrainOptions o;
    o.task = "fewshot";
    o.data = at(data);
    o.layers = 1, o.heads = 2, o.width = 16, o.context = 120;
    return o;
  }

  test::TempFolder folder_;
};

std::string text_of(const at::Tensor& ids) {
  std::string text;
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    text += static_cast<char>(ids.data_ptr<std::int64_t>()[i]);
  }
  return text;
}

TEST_F(Finetune, LearnsTheAnswersTokensAlone) {
  folder_.write("two.jsonl", record("Question: held out?", {"a", "b"}, 0));
  folder_.write("two.train.jsonl", record("Question: first?", {"blue", "red"}, 1) +
                                       record("Question: the second?", {"green", "no"}, 0));
  const auto task = make_task(options("two.jsonl"));
  ASSERT_EQ(task->n_samples(), 2U);
  const std::vector<Draw> draws = {{.sample = 0}, {.sample = 1}};
  const Batch batch = task->train_batch(draws);
  EXPECT_EQ(text_of(batch.target), " red green");
  // each target is guessed from the token before it
  const std::int64_t width = batch.input.size(1);
  const auto* ids = batch.input.data_ptr<std::int64_t>();
  const auto* places = batch.places.data_ptr<std::int64_t>();
  const std::string first = "Question: first?\nAnswer: red";
  const std::string second = "Question: the second?\nAnswer: green";
  EXPECT_EQ(width, static_cast<std::int64_t>(second.size()) - 1);
  for (std::int64_t i = 0; i < batch.places.numel(); ++i) {
    const std::int64_t row = places[i] / width, column = places[i] % width;
    const std::string& text = row == 0 ? first : second;
    EXPECT_EQ(ids[places[i]], text[static_cast<std::size_t>(column)]);
    EXPECT_EQ(batch.target.data_ptr<std::int64_t>()[i], text[static_cast<std::size_t>(column) + 1]);
  }
  // the loss is that of the whole logits at these places, and padding has no part in it
  const auto model = task->model().make();
  model->initialise(3);
  const at::Tensor rows = model->logits(batch.input).view({-1, 256}).index_select(0, batch.places);
  const double loss = mean_loss(*model, batch).item<double>();
  EXPECT_NEAR(loss, at::cross_entropy_loss(rows, batch.target).item<double>(), 1e-6);
  const Batch alone = task->train_batch(std::vector<Draw>{{.sample = 0}});
  const double second_loss =
      mean_loss(*model, task->train_batch(std::vector<Draw>{{.sample = 1}})).item<double>();
  EXPECT_NEAR(loss, (4 * mean_loss(*model, alone).item<double>() + 6 * second_loss) / 10, 1e-6);
}

TEST_F(Finetune, TrainsOnExamplesThatTheSeedChoosesAndNeverOnWhatIsHeldOut) {
  TrainOptions o = options("task.jsonl");
  const auto trained = [&] {
    const auto task = make_task(o);
    std::set<std::string> all;
    for (std::uint32_t i = 0; i < task->n_samples(); ++i) {
      all.insert(text_of(task->train_batch(std::vector<Draw>{{.sample = i}}).input));
    }
    EXPECT_EQ(all.size(), task->n_samples());
    return all;
  };
  const std::set<std::string> every = trained();
  const auto everything = make_task(o);
  EXPECT_EQ(number_of(everything->data().more, "train_questions") +
                number_of(everything->data().more, "eval_questions"),
            40U);
  o.examples = 6;
  const std::set<std::string> six = trained();
  EXPECT_EQ(six.size(), 6U);
  for (const std::string& text : six) EXPECT_EQ(every.count(text), 1U);
  const auto hash = make_task(o)->data().hash;
  EXPECT_NE(hash, everything->data().hash);
  o.seed = 1;
  EXPECT_NE(trained(), six);
  EXPECT_EQ(make_task(o)->data().hash, hash);
  o.examples = 41;
  expect_error<InvalidArgument>([&] { make_task(o); }, {"--examples 41", "task.jsonl"});
}

TEST_F(Finetune, LearnsAHandfulOfQuestionsByHeart) {
  const auto ask = [](const std::string& thing, std::size_t gold) {
    return record(concat("Question: what is the ", thing, " like?"), {"red", "green", "blue"},
                  gold);
  };
  std::string questions;
  std::size_t gold = 0;
  for (const char* thing : {"moon", "river", "apple", "king", "zebra", "cloud", "hat", "bridge"}) {
    questions += ask(thing, gold++ % 3);
  }
  folder_.write("heart.train.jsonl", questions);
  folder_.write("heart.jsonl", ask("bear", 1));
  const json run = train(words("--data ", at("heart.jsonl"),
                               " --steps 200 --method dlion-vote --lr 4e-3 --out ", at("run")));
  EXPECT_EQ(run.at("data").at("train_questions"), 8);
  EXPECT_EQ(run.at("final").at("questions"), 1);
  EXPECT_LT(run.at("final").at("train_loss"), 0.1);
  const json by_heart =
      evaluate({"--model", at("run"), "--tasks", at("heart.jsonl"), "--part", "train"});
  EXPECT_EQ(by_heart.at("questions"), 8);
  EXPECT_EQ(by_heart.at("acc"), 1);
  EXPECT_EQ(by_heart.at("acc_norm"), 1);
}

TEST_F(Finetune, EndsWithWhatEvaluateSaysOfItsCheckpoint) {
  const json run =
      train(words("--data ", at("task.jsonl"),
                  " --steps 10 --method lion --lr 3e-3 --shots 1 --seed 4 --out ", at("run")));
  const json said = evaluate(words("--init ", at("run"), " --tasks ", at("task.jsonl"),
                                   " --part held-out --shots 1 --seed 4"));
  EXPECT_EQ(said.at("questions"), run.at("final").at("questions"));
  EXPECT_EQ(said.at("acc_norm"), run.at("final").at("accuracy"));
  EXPECT_EQ(said.at("acc_norm_stderr"), run.at("final").at("accuracy_stderr"));
  EXPECT_EQ(said.at("acc"), run.at("final").at("acc_sum"));
  EXPECT_EQ(said.at("acc_token"), run.at("final").at("acc_token"));
  EXPECT_EQ(said.at("chance"), run.at("final").at("chance"));
  EXPECT_NEAR(said.at("answer_loss"), run.at("final").at("loss"), 1e-4);
}

// With a rate of 0 the parameters stay the initial ones: those of the seed, for every method.
TEST_F(Finetune, StartsAlikeAndRunsByEveryMethod) {
  std::set<std::string> starts;
  for (const std::string& method : method_names()) {
    const std::vector<std::string> few = {"--data", at("few.jsonl"), "--method", method};
    const json run = train(plus(few, {"--steps", "3"}));
    EXPECT_TRUE(run.at("final").at("loss").is_number()) << method;
    EXPECT_EQ(run.at("final").at("questions"), 10) << method;
    starts.insert(train(plus(few, {"--steps", "1", "--lr", "0"})).at("param_hash"));
    EXPECT_EQ(starts.size(), 1U) << method;
  }
}

TEST_F(Finetune, GoesOnFromALanguageModel) {
  const Outcome pretrained =
      run_here(words("train --task lm --data ", at("task.jsonl"),
                     " --layers 2 --heads 2 --width 32 --context 128 --steps 5 --out ", at("lm"),
                     " --quiet --batch 2"));
  ASSERT_EQ(pretrained.code, 0) << pretrained.err;
  const auto from = [&](const char* rate) {
    std::vector<std::string> all =
        words("train --task fewshot --data ", at("few.jsonl"), " --init ", at("lm"),
              " --steps 1 --lr ", rate, " --json --quiet --batch 2 --weight-decay 0");
    return json_of(run_here(all));
  };
  const json untouched = from("0");
  EXPECT_EQ(untouched.at("model").at("size").at("context"), 128);
  const json before = evaluate({"--model", at("lm"), "--tasks", at("few.jsonl")});
  EXPECT_NEAR(before.at("answer_loss"), untouched.at("final").at("loss"), 1e-4);
  EXPECT_LT(from("1e-3").at("final").at("loss"), untouched.at("final").at("loss"));
}

TEST_F(Finetune, RefusesWhatCannotBe) {
  using Words = std::vector<std::string>;
  const auto fails = [&](const Words& more, const char* part) {
    test::expect_failure(small(more), part);
  };
  const auto misused = [&](const Words& more, const char* part) {
    test::expect_usage(small(more), part);
  };
  fails({}, "task fewshot: give --data");
  folder_.write("bad.jsonl", records(3) + "nothing\n");
  fails({"--data", at("bad.jsonl")}, "bad.jsonl:4: not JSON");
  folder_.write("long.jsonl", records(30) + record("long?", {"no", std::string(200, 'x')}, 0));
  fails({"--data", at("long.jsonl")}, "long.jsonl:31: a choice has more tokens");
  EXPECT_EQ(train({"--data", at("long.jsonl"), "--skip-long", "--steps", "1"})
                .at("data")
                .at("notes")
                .size(),
            1U);
  misused({"--data", at("task.jsonl"), "--shots", "30"}, "30 examples are requested");
  misused({"--data", at("task.jsonl"), "--mixup", "0.5"},
          "--mixup is for cifar10 and imagenet only");
  expect_contains(run_here({"train", "--examples", "3"}).err, "--examples is for fewshot only");
}

}  // namespace
}  // namespace pride::app
