// Prompts, their tokens, and the scores.
// SPDX-License-Identifier: Apache-2.0
#include "train/fewshot/prompt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "fewshot/question_files.h"
#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {
namespace {

using std::filesystem::path;
using namespace test;

Question question(const std::string& query, std::vector<std::string> choices, std::size_t gold) {
  return {.query = query, .choices = std::move(choices), .gold = gold, .place = "here:1"};
}

std::string text(const std::vector<Token>& tokens) { return {tokens.begin(), tokens.end()}; }

TEST(Prompt, IsExamplesWithAnswersThenTheQuery) {
  const Question a = question("Question: one?\n", {"x", "y"}, 1);
  const Question b = question(" Question: two?", {"long one", "z"}, 0);
  const Question c = question("Question: three?\n\n", {"p", "q"}, 0);
  EXPECT_EQ(prompt_text(c, {&a, &b}, "\nAnswer: "),
            "Question: one?\nAnswer: y\n\nQuestion: two?\nAnswer: long one\n\n"
            "Question: three?\nAnswer:");
  EXPECT_EQ(prompt_text(a, {}, " "), "Question: one?");
  EXPECT_EQ(prompt_text(a, {}, ""), "Question: one?");
  EXPECT_EQ(prompt_text(b, {&a}, " -> "), "Question: one? -> y\n\nQuestion: two? ->");
}

TEST(Prompt, NeverContainsTheQuestionItself) {
  const TempFolder folder;
  // some questions are there twice, with other choices
  const QuestionSet set(folder.write("a.jsonl", records(12) + records(4, "bear") + records(6) +
                                                    record("Question: lone?", {"a", "b"}, 0)));
  const QuestionList all = set.part(Part::kAll);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (const Question* asked : all) {
      const QuestionList examples = draw_examples(all, *asked, 5, seed);
      ASSERT_EQ(examples.size(), 5U);
      EXPECT_EQ(std::set<const Question*>(examples.begin(), examples.end()).size(), 5U);
      for (const Question* example : examples) {
        EXPECT_NE(example->query, asked->query) << "seed " << seed;
      }
    }
  }
}

TEST(Prompt, HasExamplesThatTheSeedAloneChooses) {
  const TempFolder folder;
  const QuestionSet set(folder.write("a.jsonl", records(60)));
  const QuestionList all = set.part(Part::kAll);
  EXPECT_EQ(draw_examples(all, *all[3], 4, 7), draw_examples(all, *all[3], 4, 7));
  EXPECT_NE(draw_examples(all, *all[3], 4, 7), draw_examples(all, *all[3], 4, 8));
  EXPECT_NE(draw_examples(all, *all[3], 4, 7), draw_examples(all, *all[4], 4, 7));
  const QuestionList four = draw_examples(all, *all[3], 4, 7);
  EXPECT_EQ(draw_examples(all, *all[3], 2, 7), QuestionList(four.begin(), four.begin() + 2));
  EXPECT_EQ(draw_examples(all, *all[3], 59, 7).size(), 59U);
  expect_error<InvalidArgument>([&] { draw_examples(all, *all[3], 60, 7); },
                                {"a.jsonl:4", "60 examples", "59 other questions"});
  std::set<const Question*> seen;
  for (std::uint64_t seed = 0; seed < 600; ++seed)
    seen.insert(draw_examples(all, *all[0], 1, seed)[0]);
  EXPECT_EQ(seen.size(), 59U) << "all but the question; each is missed by 600 draws with 4e-5";
}

TEST(QuestionEncoder, GivesEachChoiceTheBlankBeforeIt) {
  QuestionEncoder encoder(nullptr, {.delimiter = {}, .context = 100});
  const Question q = question("Who?\n", {"me", "you two"}, 0);
  const auto encoded = encoder.encode(q, {}, "\nAnswer: ");
  ASSERT_TRUE(encoded.has_value());
  EXPECT_EQ(text(encoded->prompt), "Who?\nAnswer:");
  ASSERT_EQ(encoded->choices.size(), 2U);
  EXPECT_EQ(text(encoded->choices[0]), " me");
  EXPECT_EQ(text(encoded->choices[1]), " you two");
  EXPECT_EQ(encoded->cut, 0U);
  QuestionEncoder tight(nullptr, {.delimiter = ":", .context = 100});
  EXPECT_EQ(text(tight.encode(q, {}, " ")->prompt), "Who?:");
  EXPECT_EQ(text(tight.encode(q, {}, " ")->choices[0]), "me");
}

TEST(QuestionEncoder, CutsOnTheLeftOnlyWhatDoesNotFitAndCountsIt) {
  const Question q = question("abcdefgh", {"x", "12345"}, 0);  // 8 of prompt, 6 of choice
  for (std::size_t context = 6; context < 20; ++context) {
    QuestionEncoder encoder(nullptr, {.delimiter = {}, .context = context});
    const auto encoded = encoder.encode(q, {}, " ");
    ASSERT_TRUE(encoded.has_value()) << context;
    const std::size_t room = context + 1 - 6, kept = std::min<std::size_t>(room, 8);
    EXPECT_EQ(text(encoded->prompt), std::string("abcdefgh").substr(8 - kept)) << context;
    EXPECT_EQ(encoded->cut, 8 - kept);
    EXPECT_EQ(text(encoded->choices[0]), " x");
    // all but the last token is read
    EXPECT_LE(encoded->prompt.size() + encoded->choices[1].size() - 1, context);
  }
  EXPECT_FALSE(
      QuestionEncoder(nullptr, {.delimiter = {}, .context = 5}).encode(q, {}, " ").has_value());
}

TEST(QuestionEncoder, RefusesOrLeavesOutWhatCannotFit) {
  const TempFolder folder;
  const QuestionSet set(folder.write(
      "a.jsonl", record("short?", {"a", "b"}, 0) + record("long?", {"a", "much longer"}, 0)));
  QuestionEncoder encoder(nullptr, {.delimiter = {}, .context = 9});
  expect_error<DataError>([&] { encoder.encode_part(set, Part::kAll, false); },
                          {"a.jsonl:2", "(9)", "--skip-long"});
  const EncodedSet some = encoder.encode_part(set, Part::kAll, true);
  ASSERT_EQ(some.questions.size(), 1U);
  EXPECT_EQ(some.n_left_out, 1U);
  EXPECT_EQ(encoder.encode_part(set, Part::kAll, false, 1).questions.size(), 1U);
  expect_error<DataError>(
      [&] {
        QuestionEncoder(nullptr, {.delimiter = {}, .context = 1})
            .encode_part(set, Part::kAll, true);
      },
      {"a.jsonl: no question is left", "2 of them"});
}

TEST(Picks, AreByTheSumByBytesAndByTokens) {
  const Question q = question("?", {"ab", "abcd", "abcdefgh"}, 1);
  const EncodedQuestion encoded{.question = &q, .prompt = {1}, .choices = {{1, 2}, {1, 2, 3}, {1}}};
  const std::vector<double> scores = {-4, -6, -7};
  // by bytes -2, -1.5, -0.875; by tokens -2, -2, -7
  const Picks picks = picks_of(encoded, scores);
  EXPECT_EQ(picks.by_sum, 0U);
  EXPECT_EQ(picks.by_byte, 2U);
  EXPECT_EQ(picks.by_token, 0U) << "the first of equals";
  Tally tally;
  tally.add(encoded, scores);
  tally.add(encoded, std::vector<double>{-9, -1, -9});
  EXPECT_EQ(tally.questions, 2);
  EXPECT_EQ(tally.by_sum, 1);
  EXPECT_EQ(tally.by_byte, 1);
  EXPECT_EQ(tally.by_token, 1);
  EXPECT_DOUBLE_EQ(tally.loss, 7);
  EXPECT_EQ(tally.answer_tokens, 6);
  EXPECT_DOUBLE_EQ(tally.chance, 2.0 / 3);
  Tally broken;
  broken.add(encoded, std::vector<double>{-1, std::numeric_limits<double>::quiet_NaN(), -2});
  EXPECT_EQ(broken.by_sum + broken.by_byte + broken.by_token, 0) << "no pick without numbers";
}

TEST(Picks, HaveTheErrorOfAMeanOfZerosAndOnes) {
  // 3 of 8: the sample's deviation over the square root of 8, by hand
  const double p = 3.0 / 8, variance = (3 * (1 - p) * (1 - p) + 5 * p * p) / 7;
  EXPECT_NEAR(standard_error(3, 8).value(), std::sqrt(variance / 8), 1e-15);
  EXPECT_EQ(standard_error(1, 1), std::nullopt);
  EXPECT_EQ(standard_error(8, 8), 0);
  const Question a = question("?", {"a", "b"}, 1), b = question("?", {"a", "b"}, 0);
  EXPECT_DOUBLE_EQ(majority({&a, &b, &a}), 2.0 / 3);
}

TEST(PromptRealData, SplitsIntoTheTokensOfTheWholeText) {
  const path data = PRIDE_SHARED_DATA;
  if (!std::filesystem::exists(data / "fewshot") || !std::filesystem::exists(data / "gpt2_bpe")) {
    GTEST_SKIP() << "no questions, or no vocabulary, in " << data;
  }
  const auto vocabulary = std::make_shared<Vocabulary>(data / "gpt2_bpe");
  QuestionEncoder encoder(vocabulary, {.shots = 2, .delimiter = {}, .context = 4096});
  BpeEncoder bpe(*vocabulary);
  std::size_t n = 0;
  for (const QuestionSet& set : read_question_sets({data / "fewshot"})) {
    const QuestionList all = set.part(Part::kAll);
    for (std::size_t i = 0; i < all.size(); i += 10) {
      const auto encoded = encoder.encode(*all[i], all, set.delimiter());
      ASSERT_TRUE(encoded.has_value());
      const std::string prompt =
          prompt_text(*all[i], draw_examples(all, *all[i], 2, 0), set.delimiter());
      for (std::size_t c = 0; c < all[i]->choices.size(); ++c) {
        std::vector<Token> whole, parts = encoded->prompt;
        bpe.encode(prompt + " " + all[i]->choices[c], whole);
        parts.insert(parts.end(), encoded->choices[c].begin(), encoded->choices[c].end());
        ASSERT_EQ(parts, whole) << all[i]->place << " choice " << c;
        ++n;
      }
    }
  }
  EXPECT_GT(n, 3000U);
}

}  // namespace
}  // namespace pride::app
