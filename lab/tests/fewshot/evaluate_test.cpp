// `pride evaluate` against torch: the same scores and picks; batches and padding change nothing.
// SPDX-License-Identifier: Apache-2.0
// Oracle: records read, prompts and tokens made, and choices scored here, one at a time without
// padding, by a GPT-2 of torch's own modules (torch_gpt2.h); softmax and sums in double.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include "fewshot/question_files.h"
#include "support/run_here.h"
#include "text/small_vocabulary.h"
#include "train/choices.h"
#include "train/models/gpt2_file.h"
#include "train/torch_gpt2.h"
#include "train_names.h"

namespace pride::app {
namespace {

using nlohmann::json;
using std::filesystem::path;
using namespace test;

// float32 logits of sums in another order, in sums over some hundred tokens
constexpr double kTolerance = 1e-4;

class Evaluate : public ::testing::Test {
 protected:
  // Writes a checkpoint with random weights, small enough to be unsure.
  void make_model(std::int64_t vocabulary, std::int64_t context) {
    size_ = {.layers = 2, .heads = 2, .width = 16, .context = context, .vocabulary = vocabulary};
    tensors_ = test::checkpoint(size_, "");
    write_safetensors(folder_.path() / "model.safetensors", tensors_, {{"format", "pt"}});
    folder_.write("config.json", gpt2_config(size_));
  }
  Outcome evaluate(std::vector<std::string> more) const {
    return test::run_here(plus({"evaluate", "--model", folder_.path().string(), "--quiet"}, more));
  }
  // The program's output for each question, and for the task.
  std::vector<json> predictions(const path& file, std::vector<std::string> more = {}) {
    const std::string to = (folder_.path() / "predictions.jsonl").string();
    more.insert(more.end(), {"--tasks", file.string(), "--predictions", to, "--json"});
    const Outcome outcome = evaluate(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    said_ = outcome.err;
    summary_ = json::parse(outcome.out);
    return test::json_lines(test::bytes_of(to));
  }

  double log_prob(std::vector<std::int64_t> prompt, const std::vector<std::int64_t>& choice) const {
    const std::size_t n = prompt.size();
    prompt.insert(prompt.end(), choice.begin(), choice.end());
    const torch::Tensor ids = torch::tensor(prompt);
    const test::TorchGpt2 model(tensors_, "", size_);
    const torch::Tensor all =
        torch::log_softmax(model.logits(ids.slice(0, 0, -1)).to(torch::kDouble), -1);
    double sum = 0;
    for (std::size_t i = n; i < prompt.size(); ++i) {
      sum += all[static_cast<std::int64_t>(i) - 1][prompt[i]].item<double>();
    }
    return sum;
  }

  test::TempFolder folder_;
  GptSize size_;
  test::Tensors tensors_;
  json summary_;
  std::string said_;
};

std::vector<std::int64_t> bytes(const std::string& text) {
  std::vector<std::int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::size_t best(const std::vector<double>& scores) {
  return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

// the record of the question that the program names
json record_at(const path& file, const json& prediction) {
  const std::string place = prediction.at("place");
  std::ifstream in(file);
  std::string line;
  for (int n = std::stoi(place.substr(place.rfind(':') + 1)); n > 0; --n) std::getline(in, line);
  return json::parse(line);
}

TEST_F(Evaluate, GivesTheScoresAndPicksOfTorchsOwnModules) {
  const torch::NoGradGuard no_grad;
  make_model(256, 400);
  const path file = folder_.write("task.jsonl", records(40));
  const std::vector<json> found = predictions(file);
  ASSERT_EQ(found.size(), 40U);
  int right = 0, right_norm = 0;
  for (const json& p : found) {
    const json asked = record_at(file, p);
    const std::string prompt = asked.at("query").get<std::string>() + "\nAnswer:";
    EXPECT_EQ(p.at("prompt"), prompt);
    std::vector<double> sums, by_byte;
    for (const std::string choice : asked.at("choices")) {
      sums.push_back(log_prob(bytes(prompt), bytes(" " + choice)));
      by_byte.push_back(sums.back() / static_cast<double>(choice.size()));
      EXPECT_NEAR(p.at("log_probs").at(sums.size() - 1).get<double>(), sums.back(), kTolerance)
          << p.at("place");
    }
    EXPECT_EQ(p.at("pick"), best(sums)) << p;
    EXPECT_EQ(p.at("pick_norm"), best(by_byte)) << p;
    right += p.at("pick") == asked.at("gold") ? 1 : 0;
    right_norm += p.at("pick_norm") == asked.at("gold") ? 1 : 0;
  }
  EXPECT_DOUBLE_EQ(summary_.at("acc"), right / 40.0);
  EXPECT_DOUBLE_EQ(summary_.at("acc_norm"), right_norm / 40.0);
  EXPECT_EQ(summary_.at("questions"), 40);
  EXPECT_NEAR(summary_.at("acc_stderr"), std::sqrt(right / 40.0 * (1 - right / 40.0) / 39), 1e-12);
  EXPECT_EQ(predictions(file, {"--limit", "6"}).size(), 6U);
}

TEST_F(Evaluate, ShowsKOtherQuestionsOfTheSeed) {
  make_model(256, 600);
  const path file = folder_.write("task.jsonl", records(12));
  const auto shown = predictions(file, {"--shots", "3", "--seed", "5"});
  EXPECT_EQ(summary_.at("shots"), 3);
  for (const json& p : shown) {
    const std::string prompt = p.at("prompt");
    const std::size_t last = prompt.rfind("\n\n");
    ASSERT_NE(last, std::string::npos) << prompt;
    EXPECT_EQ(prompt.substr(last + 2),
              record_at(file, p).at("query").get<std::string>() + "\nAnswer:");
    EXPECT_EQ(std::ranges::count(prompt, '\n'), 3 * 3 + 1) << prompt;
  }
  EXPECT_EQ(shown, predictions(file, {"--shots", "3", "--seed", "5"}));
  EXPECT_NE(shown[0].at("prompt"),
            predictions(file, {"--shots", "3", "--seed", "6"})[0].at("prompt"));
}

TEST_F(Evaluate, GivesTheSameScoresInBatchesOfAnySizeAndOnAnyThreads) {
  make_model(256, 400);
  const path file = folder_.write("task.jsonl", records(30));
  const std::vector<json> alone = predictions(file, {"--batch", "1", "--threads", "1"});
  const std::vector<std::vector<std::string>> others = {
      {"--batch", "7", "--threads", "1"}, {"--batch", "100"}, {"--batch", "3", "--threads", "4"}};
  for (const auto& flags : others) {
    const std::vector<json> other = predictions(file, flags);
    ASSERT_EQ(other.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(other[i].at("place"), alone[i].at("place"));
      for (std::size_t c = 0; c < alone[i].at("log_probs").size(); ++c) {
        EXPECT_NEAR(other[i].at("log_probs").at(c).get<double>(),
                    alone[i].at("log_probs").at(c).get<double>(), kTolerance);
      }
    }
  }
  // the result does not depend on threads
  EXPECT_EQ(predictions(file, {"--batch", "3", "--threads", "1"}),
            predictions(file, {"--batch", "3", "--threads", "4"}));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve it all
// Address space for a few stacks of 8 MiB, but not for thousands.
TEST_F(Evaluate, SaysThatItHasNotSoManyThreads) {
  Gpt model({.layers = 1, .heads = 1, .width = 8, .context = 8, .vocabulary = 256});
  model.initialise(1);
  const std::vector<EncodedQuestion> questions(20, {.prompt = {1, 2}, .choices = {{3}, {4, 5}}});
  const auto score = [&](int threads) {
    return score_all(model, questions, {.batch = 1, .threads = threads}, [](std::size_t) {});
  };
  const auto before = score(2);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &old), 0);
  rlimit small = old;
  small.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{512} << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  test::expect_error<Error>([&] { score(4000); }, {"of 4000 threads could be started"});
  ASSERT_EQ(setrlimit(RLIMIT_AS, &old), 0);
  EXPECT_EQ(score(2), before);
}
#endif

TEST_F(Evaluate, CutsLongPromptsOnTheLeftAndSaysSo) {
  make_model(256, 40);
  const path file = folder_.write("task.jsonl", records(10));
  for (const json& p : predictions(file)) {
    const std::string whole = record_at(file, p).at("query").get<std::string>() + "\nAnswer:";
    const std::string kept = p.at("prompt");
    EXPECT_EQ(kept, whole.substr(whole.size() - kept.size()));
    EXPECT_EQ(p.at("cut"), whole.size() - kept.size());
  }
  EXPECT_EQ(summary_.at("cut_prompts"), 10);
  expect_contains(said_, "10 of 10 prompts are longer than the context");
}

TEST_F(Evaluate, SaysWhatIsWrong) {
  make_model(256, 12);
  const auto with_code = [&](int code) {
    return [&, code](std::vector<std::string> more, const std::string& part) {
      const Outcome outcome = evaluate(std::move(more));
      EXPECT_EQ(outcome.code, code) << outcome.err;
      test::expect_contains(outcome.err, part);
    };
  };
  const auto fails = with_code(1), misused = with_code(2);
  const std::string good = folder_.write("good.jsonl", records(6)).string();
  const std::string bad = folder_.write("bad.jsonl", records(2) + "{\"query\": \"?\"}\n").string();
  fails({"--tasks", bad}, "bad.jsonl:3: no \"choices\"");
  fails({"--tasks", good}, "good.jsonl:1: a choice has more tokens than the model reads");
  misused({"--tasks", good, "--part", "half"}, "--part half");
  const std::string vocab = test::write_small_vocabulary(folder_).string();
  misused({"--tasks", good, "--vocab", vocab}, "has 269 tokens, the model only 256");
  make_model(300, 64);
  misused({"--tasks", good}, "this model has 300 tokens, which are not bytes: give --vocab");
  misused({"--tasks", good, "--vocab", vocab, "--shots", "6"}, "6 examples are requested");
  EXPECT_EQ(evaluate({"--tasks", good, "--vocab", vocab, "--batch", "0"}).code, 2);
  fails({"--tasks", good, good, "--vocab", vocab}, "good.jsonl is given twice");
  fails({"--tasks", good, "--vocab", vocab, "--predictions", folder_.path().string()},
        "it is a folder");
  const std::string other = folder_.write("other.jsonl", records(5)).string();
  const Outcome table = evaluate({"--tasks", good, other, "--vocab", vocab});
  ASSERT_EQ(table.code, 0) << table.err;
  expect_contains(table.out, {"acc_norm", "good", "other", "±", "chance", "mean"});
}

}  // namespace
}  // namespace pride::app
