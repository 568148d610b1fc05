// Files of questions: parsing, refusals, and the split into training and evaluation.
// SPDX-License-Identifier: Apache-2.0
#include "train/fewshot/questions.h"

#include <gtest/gtest.h>

#include <set>

#include "fewshot/question_files.h"
#include "pride/error.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {
namespace {

using std::filesystem::path;
using namespace test;

std::set<std::string> queries(const QuestionList& list) {
  std::set<std::string> all;
  for (const Question* question : list) all.insert(question->query);
  return all;
}

TEST(Questions, AreReadWithTheirPlaces) {
  const TempFolder folder;
  const path file = folder.write(
      "task.jsonl", R"({"choices": ["a", "b"], "gold": 1, "query": "one", "more": [1]})"
                    "\r\n\n" +
                        record("zwei\nQuestion: caf\xC3\xA9?", {"x", "y", "z"}, 2));
  const std::vector<Question> questions = read_questions(file);
  ASSERT_EQ(questions.size(), 2U);
  EXPECT_EQ(questions[0].query, "one");
  EXPECT_EQ(questions[0].choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(questions[0].gold, 1U);
  EXPECT_EQ(questions[1].query, "zwei\nQuestion: caf\xC3\xA9?");
  EXPECT_EQ(questions[1].place, file.string() + ":3");
}

TEST(Questions, AreRefusedWithFileAndLine) {
  const TempFolder folder;
  const std::pair<const char*, const char*> bad[] = {
      {"{\"query\": \"q\"", "not JSON"},
      {"[1]", "not a JSON object"},
      {R"({"choices": ["a", "b"], "gold": 0})", "no \"query\""},
      {R"({"query": 3, "choices": ["a", "b"], "gold": 0})", "\"query\" is not a text"},
      {R"({"query": " \n", "choices": ["a", "b"], "gold": 0})", "\"query\" is blank"},
      {R"({"query": "q", "gold": 0})", "no \"choices\""},
      {R"({"query": "q", "choices": ["a"], "gold": 0})", "\"choices\" is not a list of two"},
      {R"({"query": "q", "choices": "ab", "gold": 0})", "\"choices\" is not a list of two"},
      {R"({"query": "q", "choices": ["a", 1], "gold": 0})", "choice 1 is not a text"},
      {R"({"query": "q", "choices": ["a", " "], "gold": 0})", "choice 1 is blank"},
      {R"({"query": "q", "query": "r", "choices": ["a", "b"], "gold": 0})",
       "\"query\" appears twice"},
      {R"({"query": "q", "choices": ["a", "b"]})", "no \"gold\""},
      {R"({"query": "q", "choices": ["a", "b"], "gold": 2})", "\"gold\" 2 is not an index of 2"},
      {R"({"query": "q", "choices": ["a", "b"], "gold": -1})", "\"gold\" -1 is not an index"},
      {R"({"query": "q", "choices": ["a", "b"], "gold": "a"})", "\"gold\" \"a\" is not an index"},
      {R"({"query": "q", "choices": ["a", "b"], "gold": 0.5})", "is not an index"}};
  for (const auto& [line, why] : bad) {
    const path file = folder.write("bad.jsonl", record("fine", {"a", "b"}, 0) + line + "\n");
    expect_error<DataError>([&] { read_questions(file); }, {"bad.jsonl:2: ", why});
  }
  expect_error<DataError>([&] { read_questions(folder.write("none.jsonl", "\n")); },
                          {"none.jsonl: no question"});
  expect_error<DataError>([&] { read_questions(folder.path() / "gone.jsonl"); }, {"gone.jsonl"});
  expect_error<DataError>([&] { read_question_sets({folder.path() / "gone"}); }, {"gone"});
  std::filesystem::create_directory(folder.path() / "empty");
  expect_error<DataError>([&] { read_question_sets({folder.path() / "empty"}); }, {"no *.jsonl"});
}

TEST(QuestionSets, RefuseAFileThatIsGivenTwice) {
  const TempFolder folder;
  const auto file = folder.write("a.jsonl", records(3));
  folder.write("b.jsonl", records(3));  // a copy of another name is another task
  EXPECT_EQ(read_question_sets({folder.path()}).size(), 2U);
  std::filesystem::create_symlink(file, folder.path() / "link.jsonl");
  expect_error<DataError>([&] { read_question_sets({folder.path()}); },
                          {"link.jsonl", "given twice"});
  std::filesystem::remove(folder.path() / "link.jsonl");
  std::filesystem::create_symlink(folder.path() / "gone", folder.path() / "dangling.jsonl");
  expect_error<DataError>([&] { read_question_sets({folder.path()}); }, {"dangling.jsonl"});
  std::filesystem::remove(folder.path() / "dangling.jsonl");
  expect_error<DataError>([&] { read_question_sets({file, file}); }, {"a.jsonl", "given twice"});
  expect_error<DataError>(
      [&] {
        read_question_sets({folder.path(), folder.path() / "." / "a.jsonl"});
      },
      {"a.jsonl", "given twice"});
}

TEST(QuestionSet, IsSplitIntoHalvesThatDoNotDependOnTheFile) {
  const TempFolder folder;
  const QuestionSet set(folder.write("a.jsonl", records(400)));
  const auto train = queries(set.part(Part::kTrain)), held_out = queries(set.part(Part::kHeldOut));
  EXPECT_EQ(train.size() + held_out.size(), 400U);
  // 400 fair coins: six deviations
  EXPECT_NEAR(static_cast<double>(train.size()), 200, 60);
  for (const std::string& query : train) EXPECT_EQ(held_out.count(query), 0U) << query;
  // a question that is there twice is not on both sides, and others do not move
  const QuestionSet more(folder.write("b.jsonl", records(400, "bear") + records(400) + records(9)));
  for (const std::string& query : held_out) {
    EXPECT_EQ(queries(more.part(Part::kHeldOut)).count(query), 1U) << query;
    EXPECT_EQ(queries(more.part(Part::kTrain)).count(query), 0U) << query;
  }
  EXPECT_EQ(set.part(Part::kAll).size(), 400U);
  EXPECT_EQ(queries(set.examples(Part::kHeldOut)), train);
  EXPECT_EQ(set.examples(Part::kAll).size(), 400U);
}

TEST(QuestionSet, TrainsOnTheFileBesideIt) {
  const TempFolder folder;
  const QuestionSet alone(folder.write("x/a.jsonl", records(5)));
  folder.write("x/a.train.jsonl", records(7, "bear"));
  folder.write("x/b.jsonl", record("yes or no?", {"yes", "no"}, 1));
  const std::vector<QuestionSet> sets = read_question_sets({folder.path() / "x"});
  ASSERT_EQ(sets.size(), 2U);
  EXPECT_EQ(sets[0].name(), "a");
  EXPECT_EQ(sets[1].name(), "b");
  EXPECT_EQ(sets[0].part(Part::kTrain).size(), 7U);
  EXPECT_EQ(sets[0].part(Part::kHeldOut).size(), 5U);
  EXPECT_EQ(sets[0].part(Part::kAll).size(), 5U);
  EXPECT_EQ(sets[0].examples(Part::kAll), sets[0].part(Part::kTrain));
  EXPECT_NE(sets[0].hash(), alone.hash());
  EXPECT_EQ(sets[0].delimiter(), "\nAnswer: ");
  EXPECT_EQ(sets[1].delimiter(), " ");
  EXPECT_THROW(parse_part("half"), InvalidArgument);
}

}  // namespace
}  // namespace pride::app
