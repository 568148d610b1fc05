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

// Reads a file; other keys of a record are left alone, blank lines too. Throws DataError, naming
// file and line: not JSON, a key that is missing or of another kind, a blank text, a gold that is
// no index of the choices; or if there is no question at all.
std::vector<Question> read_questions(const std::filesystem::path& file);

// Which questions of a task: those to train on and the others never overlap.
enum class Part { kAll, kTrain, kHeldOut };

// "all", "train" or "held-out". Throws InvalidArgument otherwise.
Part parse_part(const std::string& text);

using QuestionList = std::vector<const Question*>;

// A task: NAME.jsonl, and the questions to train on, which are those of NAME.train.jsonl if it lies
// beside. If not, the file itself is split in halves by the hash of the query (XXH3-64, the even
// ones train), so that a question is on the same side in every run.
class QuestionSet {
 public:
  // Throws DataError.
  explicit QuestionSet(const std::filesystem::path& file);

  const std::string& name() const noexcept { return name_; }
  const std::filesystem::path& file() const noexcept { return file_; }
  bool has_train_file() const noexcept { return !train_.empty(); }
  std::uint64_t hash() const noexcept { return hash_; }  // of both files' bytes

  // kAll is NAME.jsonl, whatever lies beside it.
  QuestionList part(Part part) const;
  // What may be shown as an example to who is asked `part`: the questions to train on; for kAll of
  // a file without others, all of it.
  QuestionList examples(Part part) const;

  // What stands between a query and its answer: "\nAnswer: " if in every query a line begins with
  // "Question:", else " ".
  const std::string& delimiter() const noexcept { return delimiter_; }

 private:
  std::filesystem::path file_;
  std::string name_, delimiter_;
  std::vector<Question> test_, train_;
  std::uint64_t hash_ = 0;
};

// The sets that `inputs` mean: a file is one, a folder all its *.jsonl but *.train.jsonl, in order
// of name. Throws DataError, also if there is none, or one file twice.
std::vector<QuestionSet> read_question_sets(const std::vector<std::filesystem::path>& inputs);

}  // namespace pride::train
