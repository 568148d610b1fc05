// The task fewshot: choose the right answer to a question.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "pride/error.h"
#include "pride/random_bits.h"
#include "pride/train/task.h"
#include "program/hex.h"
#include "train/choices.h"
#include "train/fewshot/prompt.h"
#include "train/streams.h"

namespace pride::train {
namespace {

constexpr std::size_t kEvalQuestions = 8;  // per batch

std::shared_ptr<const Vocabulary> vocabulary_of(const TrainOptions& o) {
  return o.vocab.empty() ? nullptr : std::make_shared<const Vocabulary>(o.vocab);
}

std::vector<QuestionSet> load_questions(const TrainOptions& o) {
  if (o.data.empty()) {
    throw DataError("task fewshot: give --data FILE.jsonl, or a folder of such files");
  }
  return read_question_sets({o.data});
}

// `k` of n indices, ascending; all of them if k is 0
std::vector<std::size_t> choose(std::size_t n, std::size_t k, PhiloxStream bits) {
  std::vector<std::size_t> chosen(n);
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  if (k == 0) return chosen;
  for (std::size_t i = 0; i < k; ++i) {
    std::swap(chosen[i], chosen[i + bits.next_below(static_cast<std::uint32_t>(n - i))]);
  }
  chosen.resize(k);
  std::ranges::sort(chosen);
  return chosen;
}

// Stores a Tally in an evaluation's sums, in the order of its members.
void set_tally(const Tally& t, EvalSums& sums) {
  sums.own = {static_cast<double>(t.questions),
              static_cast<double>(t.by_sum),
              static_cast<double>(t.by_byte),
              static_cast<double>(t.by_token),
              t.loss,
              static_cast<double>(t.answer_tokens),
              t.chance};
}

Tally tally_of(const EvalSums& sums) {
  const auto count = [&](std::size_t i) { return static_cast<std::int64_t>(sums.own[i]); };
  return {.questions = count(0),
          .by_sum = count(1),
          .by_byte = count(2),
          .by_token = count(3),
          .loss = sums.own[4],
          .answer_tokens = count(5),
          .chance = sums.own[6]};
}

// A sample is a question without examples; its targets are the tokens of the right answer. An
// evaluation uses the held-out questions, with examples, and scores all choices.
class ChoiceTask final : public Task {
 public:
  explicit ChoiceTask(const TrainOptions& o)
      : sets_(load_questions(o)),
        vocabulary_(vocabulary_of(o)),
        model_(model_maker(o, {.classes = n_tokens(vocabulary_.get())}, "gpt-small")) {
    const double tokens = number_of(model_.size, "vocabulary");
    PRIDE_CHECK(vocabulary_ || tokens == 256, "--init: the model has ", tokens,
                " tokens, which are not bytes: give --vocab FOLDER");
    for (std::size_t i = 0; i < sets_.size(); ++i) {
      add_training(sets_[i], o, PhiloxStream(o.seed, streams::kFewshot, i));
      add_evaluation(sets_[i], o);
    }
    choose_evaluated(o.eval_batches.value_or(0));
    hash_ = hash_of(o);
    facts_ = facts_of(o);
  }

  std::string name() const override { return "fewshot"; }
  const ModelMaker& model() const override { return model_; }
  std::size_t n_samples() const override { return train_.size(); }
  std::size_t n_eval_batches() const override {
    return (eval_.size() + kEvalQuestions - 1) / kEvalQuestions;
  }

  Batch train_batch(std::span<const Draw> draws) const override {
    std::vector<ChoiceRow> rows;
    for (const Draw& draw : draws) {
      const EncodedQuestion& question = train_[draw.sample];
      rows.push_back({question.prompt, question.choices[question.question->gold]});
    }
    return batch_of(rows);
  }

  // Rows of all choices, including the wrong ones.
  Batch eval_batch(std::size_t index) const override {
    return batch_of_choices(questions_of(index));
  }
  void add_eval_batch(Model& model, std::size_t index, const Batch& batch,
                      EvalSums& sums) const override {
    const auto questions = questions_of(index);
    const auto scores = score_choices(model, questions, batch);
    Tally tally = tally_of(sums);
    for (std::size_t i = 0; i < questions.size(); ++i) tally.add(questions[i], scores[i]);
    set_tally(tally, sums);
  }

  Facts eval_metrics(const EvalSums& sums) const override {
    const Tally t = tally_of(sums);
    const auto n = static_cast<double>(t.questions);
    Facts metrics = {{"loss", t.loss / static_cast<double>(t.answer_tokens)},
                     {"accuracy", static_cast<double>(t.by_byte) / n}};
    if (const auto error = standard_error(t.by_byte, t.questions)) {
      metrics.emplace_back("accuracy_stderr", *error);
    }
    metrics.emplace_back("acc_sum", static_cast<double>(t.by_sum) / n);
    metrics.emplace_back("acc_token", static_cast<double>(t.by_token) / n);
    metrics.emplace_back("chance", t.chance / n);
    metrics.emplace_back("questions", t.questions);
    return metrics;
  }

  DataFacts data() const override { return facts_; }
  std::vector<std::string> notes() const override { return notes_; }

 private:
  std::span<const EncodedQuestion> questions_of(std::size_t index) const {
    const std::size_t begin = index * kEvalQuestions;
    return std::span(eval_).subspan(begin, std::min(kEvalQuestions, eval_.size() - begin));
  }

  QuestionEncoder encoder(std::int64_t shots, std::uint64_t seed) const {
    return {vocabulary_,
            {.shots = static_cast<std::size_t>(shots),
             .seed = seed,
             .delimiter = {},
             .context = static_cast<std::size_t>(model_.context)}};
  }

  void add_training(const QuestionSet& set, const TrainOptions& o, PhiloxStream bits) {
    EncodedSet all = encoder(0, o.seed).encode_part(set, Part::kTrain, o.skip_long);
    const auto k = static_cast<std::size_t>(o.examples);
    PRIDE_CHECK(k <= all.questions.size(), "--examples ", k, ": ", set.file().string(), " has ",
                all.questions.size(), " questions to train on");
    note(concat(set.name(), ", to train on"), all);
    for (const std::size_t i : choose(all.questions.size(), k, bits)) {
      train_.push_back(std::move(all.questions[i]));
    }
  }

  void add_evaluation(const QuestionSet& set, const TrainOptions& o) {
    EncodedSet all = encoder(o.shots, o.seed).encode_part(set, Part::kHeldOut, o.skip_long);
    note(concat(set.name(), ", held out"), all);
    std::ranges::move(all.questions, std::back_inserter(eval_));
  }

  // Chooses questions spread evenly over all. Questions of similar length share a batch.
  void choose_evaluated(std::int64_t batches) {
    const std::size_t n = eval_.size();
    const std::size_t wanted = static_cast<std::size_t>(batches) * kEvalQuestions;
    if (wanted > 0 && wanted < n) {
      for (std::size_t i = 0; i < wanted; ++i) std::swap(eval_[i], eval_[i * n / wanted]);
      eval_.resize(wanted);
    }
    std::ranges::stable_sort(eval_, {}, [](const EncodedQuestion& q) { return q.prompt.size(); });
  }

  void note(const std::string& what, const EncodedSet& set) {
    std::ranges::move(set.notes(what), std::back_inserter(notes_));
  }

  // the same questions with other or fewer tokens are other data
  std::uint64_t hash_of(const TrainOptions& o) const {
    std::uint64_t hash = vocabulary_ ? vocabulary_->hash() : 0;
    for (const QuestionSet& set : sets_) hash = mix64(hash, set.hash());
    return mix64(mix64(hash, static_cast<std::uint64_t>(o.examples)), o.skip_long ? 1 : 0);
  }

  DataFacts facts_of(const TrainOptions& o) const {
    std::vector<std::string> names;
    for (const QuestionSet& set : sets_) names.push_back(set.name());
    return {o.data,
            hex16(hash_),
            {{"tasks", names},
             {"train_questions", static_cast<std::int64_t>(train_.size())},
             {"eval_questions", static_cast<std::int64_t>(eval_.size())},
             {"notes", notes_}}};
  }

  std::vector<QuestionSet> sets_;
  std::shared_ptr<const Vocabulary> vocabulary_;  // null: bytes
  ModelMaker model_;
  std::vector<EncodedQuestion> train_, eval_;
  std::vector<std::string> notes_;
  std::uint64_t hash_ = 0;
  DataFacts facts_;
};

}  // namespace

TaskInfo fewshot_info() {
  const auto make = [](const TrainOptions& o) { return std::make_unique<ChoiceTask>(o); };
  return {.name = "fewshot",
          .about = "questions with choices, for a language model",
          .data = "a file of questions, or a folder of *.jsonl (lab/docs/fewshot.md)",
          .flags = {"vocab", "init", "context", "embedding-std", "examples", "shots", "skip-long"},
          .make = make};
}

}  // namespace pride::train
