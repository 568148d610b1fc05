// Questions with choices, as JSON lines: {"query": text, "choices": [text, ...], "gold": index}.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pride::train {

struct Question {
  std::string query;
  std::vector<std::string> choices;  // two or more
  std::size_t gold = 0;              // index of the right one
  std::string place;                 // "file:line", for messages
};

// Reads a file; ignores other keys of a record and blank lines. Throws DataError, naming file and
// line: not JSON, a missing or wrong key, a blank text, a gold that is not an index of the choices;
// or if there is no question.
std::vector<Question> read_questions(const std::filesystem::path& file);

// Parts of a task's questions: training and held-out questions never overlap.
enum class Part { kAll, kTrain, kHeldOut };

// "all", "train" or "held-out". Throws InvalidArgument otherwise.
Part parse_part(const std::string& text);

using QuestionList = std::vector<const Question*>;

// A task: NAME.jsonl, and the training questions, from NAME.train.jsonl if it exists beside it. If
// not, the file itself is split in halves by the hash of the query (XXH3-64, the even ones train),
// so that a question is on the same side in every run.
class QuestionSet {
 public:
  // Throws DataError.
  explicit QuestionSet(const std::filesystem::path& file);

  const std::string& name() const noexcept { return name_; }
  const std::filesystem::path& file() const noexcept { return file_; }
  bool has_train_file() const noexcept { return !train_.empty(); }
  std::uint64_t hash() const noexcept { return hash_; }  // of both files' bytes

  // kAll is NAME.jsonl, with or without a training file.
  QuestionList part(Part part) const;
  // Candidates for examples for questions of `part`: the training questions; for kAll of a file
  // without a training file, all of it.
  QuestionList examples(Part part) const;

  // The text between a query and its answer: "\nAnswer: " if in every query a line begins with
  // "Question:", else " ".
  const std::string& delimiter() const noexcept { return delimiter_; }

 private:
  std::filesystem::path file_;
  std::string name_, delimiter_;
  std::vector<Question> test_, train_;
  std::uint64_t hash_ = 0;
};

// The sets of `inputs`: a file is one; a folder has all its *.jsonl except *.train.jsonl, in order
// of name. Throws DataError, also if there is none, or one file twice.
std::vector<QuestionSet> read_question_sets(const std::vector<std::filesystem::path>& inputs);

}  // namespace pride::train
