// Tokens from the command line.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "support/run_here.h"
#include "text/small_vocabulary.h"
#include "train_names.h"

namespace pride::app {
namespace {

using namespace test;

class LanguageProgram : public ::testing::Test {
 protected:
  LanguageProgram() {
    std::string text;
    for (int i = 0; i < 600; ++i) text += concat("the thing number ", i % 7, " in there\n");
    folder_.write("text.txt", text);
  }
  std::string at(const char* name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> tokenize(std::vector<std::string> more = {}) const {
    return plus(words("tokenize ", at("text.txt"), " --vocab ", vocab_.string(), " --out ",
                      at("shards"), " --quiet"),
                more);
  }

  TempFolder folder_;
  std::filesystem::path vocab_ = test::write_small_vocabulary(folder_);
};

TEST_F(LanguageProgram, TokenizesInBothLayoutsAndChecksThem) {
  const auto report = json_of(run_here(tokenize({"--json"})));
  EXPECT_EQ(report.at("vocabulary"), 269);
  const auto n = report.at("train").at("tokens").get<std::size_t>();
  EXPECT_EQ(bytes_of(folder_.path() / "shards/train.bin").size(), 2 * n);
  expect_usage(tokenize(), "--overwrite");
  const Outcome llmc = run_here(tokenize({"--layout", "llmc", "--overwrite"}));
  ASSERT_EQ(llmc.code, 0) << llmc.err;
  EXPECT_EQ(bytes_of(folder_.path() / "shards/train_000001.bin").size(), 1024 + 2 * n);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "shards/train.bin"));
  const auto facts = json_of(
      run_here({"tokenize", "--check", at("shards"), "--vocab", vocab_.string(), "--json"}));
  ASSERT_EQ(facts.size(), 2U);
  EXPECT_EQ(facts[0].at("layout"), "llmc");
  EXPECT_EQ(facts[0].at("tokens"), n);
  EXPECT_LT(facts[0].at("largest"), 269);
}

TEST_F(LanguageProgram, ReplacesOnlyItsOwnShardsAndOnlyIfItSucceeds) {
  const auto at_out = [&](const char* name) { return folder_.path() / "shards" / name; };
  ASSERT_EQ(run_here(tokenize({"--shard-tokens", "300"})).code, 0);
  const std::string first = bytes_of(at_out("train_000001.bin"));
  const std::string second = bytes_of(at_out("train_000002.bin"));
  ASSERT_EQ(first.size(), 600U);
  folder_.write("shards/weights.bin", "mine");
  // fails after some shards are full
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"text\": \"another text, number 7, for it\"}\n";
  folder_.write("bad.jsonl", lines + "nonsense\n");
  expect_failure(words("tokenize ", at("bad.jsonl"), " --vocab ", vocab_.string(), " --out ",
                       at("shards"), " --shard-tokens 300 --overwrite --quiet"),
                 "bad.jsonl:201");
  EXPECT_EQ(bytes_of(at_out("train_000001.bin")), first);
  EXPECT_EQ(bytes_of(at_out("train_000002.bin")), second);
  // an input in the folder that is written to
  std::filesystem::rename(folder_.path() / "text.txt", at_out("text.bin"));
  const Outcome again = run_here(words("tokenize ", at_out("text.bin").string(), " --vocab ",
                                       vocab_.string(), " --out ", at("shards"), " --overwrite"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(std::filesystem::exists(at_out("train.bin")));
  EXPECT_FALSE(std::filesystem::exists(at_out("train_000001.bin"))) << "of the earlier call";
  EXPECT_EQ(bytes_of(at_out("weights.bin")), "mine");
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "shards")) {
    EXPECT_EQ(entry.path().extension(), ".bin") << "left behind: " << entry.path();
  }
  std::filesystem::rename(at_out("weights.bin"), at_out("my_train.bin"));
  expect_usage(words("tokenize ", at_out("text.bin").string(), " --vocab ", vocab_.string(),
                     " --out ", at("shards"), " --overwrite"),
               "my_train.bin would be read as one of its shards");
  folder_.write("file", "no folder");
  expect_failure(words("tokenize ", at_out("text.bin").string(), " --vocab ", vocab_.string(),
                       " --out ", at("file"), " --overwrite"),
                 "file");
}

TEST_F(LanguageProgram, SaysWhatIsWrongWithShards) {
  folder_.write("odd.bin", "abc");
  folder_.write("outside.bin", std::string("\1\0\x0D\1", 4));  // 1, 269
  expect_failure({"tokenize", "--check", at("odd.bin")}, "odd.bin: not a shard of tokens");
  expect_failure({"tokenize", "--check", at("outside.bin"), "--vocab", vocab_.string()},
                 "token 1 is 269, the vocabulary has 269");
  expect_usage({"tokenize", at("text.txt"), "--out", at("x")}, "--vocab");
  expect_failure({"tokenize", at("none"), "--out", at("x"), "--vocab", vocab_.string()}, "none");
  EXPECT_EQ(run_here(tokenize({"--layout", "gpt"})).code, 2);
}

#ifdef PRIDE_HAVE_TORCH
class LanguageTraining : public LanguageProgram {
 protected:
  LanguageTraining() { EXPECT_EQ(run_here(tokenize()).code, 0); }
  std::vector<std::string> train(const char* out, std::vector<std::string> more = {}) const {
    return plus(words("train --task lm --workers 2 --batch 4 --quiet --context 16 --layers 1 "
                      "--heads 2 --width 32 --out ",
                      at(out), " --json"),
                more);
  }
  std::vector<std::string> on_shards(const char* out, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--data", at("shards"), "--vocab", vocab_.string()});
    return train(out, more);
  }
};

TEST_F(LanguageTraining, LearnsFromShardsAndTellsItsPerplexity) {
  const auto summary = json_of(
      run_here(on_shards("run", {"--steps", "60", "--lr", "3e-3", "--method", "dlion-vote"})));
  EXPECT_EQ(summary.at("model").at("size").at("vocabulary"), 269);
  const auto& final = summary.at("final");
  const double loss = final.at("loss");
  EXPECT_LT(loss, 2.5) << "log 269 is 5.6";
  EXPECT_NEAR(final.at("perplexity"), std::exp(loss), 1e-9 * std::exp(loss));
  EXPECT_GT(final.at("tokens"), 100);
  EXPECT_EQ(summary.at("data").at("vocabulary"), vocab_.string());
  const auto records = test::json_lines(bytes_of(at("run/metrics.jsonl")));
  EXPECT_EQ(records.back().at("perplexity"), final.at("perplexity"));
}

TEST_F(LanguageTraining, GoesOnFromWhatItSavedInHuggingFacesLayout) {
  const auto metrics = [&](const std::vector<std::string>& arguments) {
    return json_of(run_here(arguments));
  };
  const auto first = metrics(on_shards("first", {"--steps", "30", "--lr", "3e-3"}));
  const auto config = nlohmann::json::parse(bytes_of(folder_.path() / "first/config.json"));
  EXPECT_EQ(config.at("n_head"), 2);
  EXPECT_EQ(config.at("vocab_size"), 269);
  // a rate of 0 leaves the weights as they were loaded
  const std::vector<std::string> init =
      words("train --task lm --data ", at("shards"), " --vocab ", vocab_.string(), " --init ",
            at("first"), " --workers 2 --steps 1 --lr 0 --json --quiet");
  const auto second = metrics(init);
  EXPECT_EQ(second.at("param_hash"), first.at("param_hash"));
  EXPECT_EQ(second.at("final").at("perplexity"), first.at("final").at("perplexity"));
  EXPECT_EQ(second.at("model").at("size").at("layers"), 1);
  expect_usage(plus(init, {"--width", "64"}), "--width 64: the model of --init has 32");
  expect_usage(plus(init, {"--context", "17"}),
               "--context 17: the model of --init has 16 positions");
  for (const char* flag : {"--init-std", "--embedding-std"}) {
    expect_usage(plus(init, {flag, "0.1"}),
                 "--init-std and --embedding-std: the values come from --init");
  }
}

TEST_F(LanguageTraining, WritesWhatItLearnt) {
  // far enough that the likeliest text is the only one seen
  const auto learn = on_shards("run", {"--steps", "600", "--lr", "3e-3", "--method", "adamw"});
  ASSERT_EQ(run_here(learn).code, 0);
  std::vector<std::string> generate = {
      "generate", "--model", at("run"),       "--vocab", vocab_.string(), "--prompt", "the thing",
      "--tokens", "40",      "--temperature", "0"};
  const Outcome text = run_here(generate);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("the thing number ", 0), 0U) << text.out;
  expect_contains(text.out, " in there\nthe thing number ");
  generate.push_back("--json");
  const auto report = json_of(run_here(generate));
  const auto& sample = report.at("samples").at(0);
  EXPECT_EQ(sample.at("tokens").size(), 40U);
  EXPECT_EQ(sample.at("end"), "length");
  EXPECT_EQ("the thing" + sample.at("text").get<std::string>() + "\n", text.out);
}

TEST_F(LanguageTraining, DrawsTheSameTextFromTheSameSeed) {
  ASSERT_EQ(run_here(on_shards("run", {"--steps", "3"})).code, 0);
  const auto samples = [&](const char* seed) {
    return json_of(run_here(words("generate --model ", at("run"), " --vocab ", vocab_.string(),
                                  " --samples 2 --seed ", seed,
                                  " --tokens 30 --top-k 50 --top-p 0.95 --json")))
        .at("samples");
  };
  const auto a = samples("1");
  EXPECT_EQ(a, samples("1"));
  EXPECT_NE(a, samples("2"));
  EXPECT_NE(a.at(0), a.at(1));
}

TEST_F(LanguageTraining, WritesBytesWithoutAVocabulary) {
  const auto run = train("bytes", {"--data", at("text.txt"), "--steps", "150", "--lr", "3e-3"});
  ASSERT_EQ(run_here(run).code, 0);
  const Outcome text = run_here({"generate", "--model", at("bytes"), "--prompt", "the thing num",
                                 "--tokens", "30", "--temperature", "0"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.rfind("the thing number ", 0), 0U) << text.out;
  const auto bytes = run_here(
      {"generate", "--model", at("bytes"), "--prompt", "\xC3\xA9", "--tokens", "1", "--json"});
  ASSERT_EQ(bytes.code, 0) << bytes.err;
  EXPECT_EQ(nlohmann::json::parse(bytes.out).at("prompt_tokens"),
            (nlohmann::json::array({0xC3, 0xA9})));
  // a prompt may come out of a pipe
  const Outcome piped = test::run_shell(
      "printf 'the thing num' | " +
      test::command_of(words("generate --model ", at("bytes"),
                             " --prompt-file /dev/stdin --tokens 30 --temperature 0")));
  EXPECT_EQ(piped.out, text.out) << piped.err;
}

// or `pride generate | head` would write on without a reader
TEST_F(LanguageTraining, StopsWritingWhenNobodyReads) {
  ASSERT_EQ(run_here(on_shards("run", {"--steps", "1"})).code, 0);
  const std::string command = test::command_of(
      {"generate", "--model", at("run"), "--vocab", vocab_.string(), "--tokens", "100000000"});
  const Outcome ended =
      test::run_shell("timeout 60 sh -c " + test::quoted(command + " | head -c 5 >/dev/null"));
  EXPECT_EQ(ended.code, 0) << "124 if it went on";
}

TEST_F(LanguageTraining, SaysWhyItCannotWrite) {
  ASSERT_EQ(run_here(on_shards("run", {"--steps", "1"})).code, 0);
  expect_usage({"generate", "--model", at("run")}, "give --vocab");
  expect_failure({"generate", "--model", at("none")}, "none");
  expect_usage({"generate", "--model", at("run"), "--temperature", "-1"}, "--temperature");
  const auto write_with = [&](const std::vector<std::string>& more, const std::string& part) {
    expect_failure(plus({"generate", "--model", at("run"), "--vocab", vocab_.string()}, more),
                   part);
  };
  expect_usage({"generate", "--model", at("run"), "--vocab", vocab_.string(), "--heads", "1"},
               "config.json says n_head 2");
  write_with({"--prompt-file", at("run")}, "run: it is a folder");
  write_with({"--prompt-file", "/dev/zero"}, "/dev/zero has more than 67108864 bytes");
  const auto config = folder_.path() / "run/config.json";
  const std::string known = test::bytes_of(config);
  folder_.write("run/config.json",
                std::regex_replace(known, std::regex("\"n_head\": 2"), "\"n_head\": -2"));
  write_with({}, "config.json: n_head -2 does not divide the width");
  std::filesystem::remove(config);
  std::filesystem::create_directory(config);
  write_with({}, "config.json: it is a folder");
  std::filesystem::remove(config);
  expect_usage({"generate", "--model", at("run"), "--vocab", vocab_.string()}, "--heads");
}

TEST_F(LanguageTraining, RefusesWhatCannotBe) {
  expect_failure(train("x", {"--vocab", vocab_.string()}), "--vocab needs --data");
  expect_failure(train("x", {"--data", at("shards"), "--vocab", at("none")}), "no vocabulary");
  expect_failure(train("x", {"--data", at("vocab"), "--vocab", at("vocab")}),
                 "with the word train in its name");
  expect_usage({"train", "--task", "cifar10", "--vocab", at("vocab")},
               "--vocab is for lm and fewshot only");
}
#endif

}  // namespace
}  // namespace pride::app
