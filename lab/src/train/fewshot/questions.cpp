// SPDX-License-Identifier: Apache-2.0
#include "train/fewshot/questions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "pride/digest.h"
#include "pride/error.h"
#include "pride/random_bits.h"
#include "program/files.h"
#include "program/io/mapped_file.h"

namespace pride::train {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEnding = ".jsonl";
constexpr std::string_view kTrainEnding = ".train.jsonl";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

// One record; messages begin with its place.
class Record {
 public:
  Record(std::string_view line, std::string place) : place_(std::move(place)) {
    json_ = parse_json(line, place_);
    if (!json_.is_object()) refuse("not a JSON object");
  }

  Question question() const {
    Question found{.query = text(at("query"), "\"query\""), .choices = {}, .gold = 0, .place = {}};
    const nlohmann::json& choices = at("choices");
    if (!choices.is_array() || choices.size() < 2)
      refuse("\"choices\" is not a list of two texts or more");
    for (const nlohmann::json& choice : choices) {
      // equal choices are allowed: published files have some
      found.choices.push_back(text(choice, concat("choice ", found.choices.size())));
    }
    const nlohmann::json& gold = at("gold");
    if (!gold.is_number_unsigned() || gold.get<std::uint64_t>() >= choices.size()) {
      refuse("\"gold\" ", gold.dump(), " is not an index of ", choices.size(), " choices");
    }
    found.gold = gold.get<std::size_t>();
    found.place = place_;
    return found;
  }

 private:
  template <typename... Words>
  [[noreturn]] void refuse(const Words&... words) const {
    throw DataError(concat(place_, ": ", words...));
  }
  const nlohmann::json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) refuse("no \"", key, "\"");
    return *found;
  }
  std::string text(const nlohmann::json& value, const std::string& what) const {
    if (!value.is_string()) refuse(what, " is not a text");
    if (is_blank(value.get_ref<const std::string&>())) refuse(what, " is blank");
    return value;
  }

  nlohmann::json json_;
  std::string place_;
};

bool trains(const Question& question) {
  return hash_bytes(std::as_bytes(std::span(question.query))) % 2 == 0;
}

bool asks(const Question& question) {
  constexpr std::string_view kMark = "Question:";
  return question.query.starts_with(kMark) ||
         question.query.find(concat("\n", kMark)) != std::string::npos;
}

fs::path train_file_of(const fs::path& file) {
  fs::path beside = file;
  return beside.replace_extension("") += kTrainEnding;
}

QuestionList pointers(const std::vector<Question>& questions) {
  QuestionList list;
  for (const Question& question : questions) list.push_back(&question);
  return list;
}

std::vector<fs::path> list_folder(const fs::path& folder) {
  std::vector<fs::path> files = entries_in(folder);
  std::erase_if(files, [](const fs::path& file) {
    return !file.string().ends_with(kEnding) || file.string().ends_with(kTrainEnding);
  });
  if (files.empty()) throw DataError(concat(folder.string(), ": no *.jsonl in it"));
  return files;
}

}  // namespace

std::vector<Question> read_questions(const fs::path& file) {
  const MappedFile mapped(file);
  std::vector<Question> questions;
  for_each_line(mapped.text(), [&](std::string_view line, std::size_t number) {
    if (is_blank(line)) return;
    questions.push_back(Record(line, concat(file.string(), ":", number)).question());
  });
  if (questions.empty()) throw DataError(concat(file.string(), ": no question in it"));
  return questions;
}

Part parse_part(const std::string& text) {
  if (text == "all") return Part::kAll;
  if (text == "train") return Part::kTrain;
  PRIDE_CHECK(text == "held-out", "--part ", text, ": must be all, train or held-out");
  return Part::kHeldOut;
}

QuestionSet::QuestionSet(const fs::path& file)
    : file_(file),
      name_(file.stem().string()),
      test_(read_questions(file)),
      hash_(file_hash(file)) {
  const fs::path beside = train_file_of(file);
  if (fs::exists(beside)) {
    train_ = read_questions(beside);
    hash_ = mix64(hash_, file_hash(beside));
  }
  delimiter_ = std::ranges::all_of(test_, asks) ? "\nAnswer: " : " ";
}

QuestionList QuestionSet::part(Part part) const {
  if (part == Part::kTrain && has_train_file()) return pointers(train_);
  QuestionList list = pointers(test_);
  if (part == Part::kAll || has_train_file()) return list;
  std::erase_if(list, [part](const Question* q) { return trains(*q) != (part == Part::kTrain); });
  return list;
}

QuestionList QuestionSet::examples(Part part) const {
  return this->part(part == Part::kAll && !has_train_file() ? Part::kAll : Part::kTrain);
}

std::vector<QuestionSet> read_question_sets(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    if (!fs::exists(input))
      throw DataError(concat("no questions: ", input.string(), " is not there"));
    if (fs::is_directory(input)) {
      std::ranges::copy(list_folder(input), std::back_inserter(files));
    } else {
      files.push_back(input);
    }
  }
  std::set<fs::path> seen;
  for (const fs::path& file : files) {
    require_regular_file(file);  // a pipe has no path to identify it
    if (!seen.insert(fs::weakly_canonical(file)).second) {
      throw DataError(concat(file.string(), " is given twice: each question counts once"));
    }
  }
  std::vector<QuestionSet> sets;
  for (const fs::path& file : files) sets.emplace_back(file);
  return sets;
}

}  // namespace pride::train
