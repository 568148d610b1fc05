// `pride evaluate`: scores a language model on multiple-choice questions.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "commands.h"
#include "pride/error.h"
#include "pride/train/trainer.h"
#include "program/clock.h"
#include "program/flag_values.h"
#include "program/hex.h"
#include "program/io/mapped_file.h"
#include "program/io/pending_file.h"
#include "program/program.h"
#include "program/table.h"
#include "train/choices.h"
#include "train/fewshot/prompt.h"
#include "train/models/gpt2_file.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/replica.h"
#include "train/torch_errors.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct EvaluateArguments {
  std::string model, vocab, part = "all", device = "cpu", predictions;
  std::vector<std::string> tasks;
  std::optional<std::string> delimiter;
  std::optional<std::int64_t> heads;
  std::size_t shots = 0, limit = 0, batch = 8;
  std::uint64_t seed = 0;
  int threads = 0;
  bool skip_long = false, json = false, quiet = false;
};

// The model and its vocabulary.
struct Subject {
  std::filesystem::path file;
  std::unique_ptr<Gpt> model;
  std::shared_ptr<const Vocabulary> vocabulary;  // null: bytes
  at::Device device = at::kCPU;

  std::string text_of(const std::vector<Token>& tokens) const {
    return vocabulary ? vocabulary->decode(tokens) : std::string(tokens.begin(), tokens.end());
  }
};

Subject load(const EvaluateArguments& args) {
  Subject subject;
  subject.file = find_gpt2(args.model);
  const GptSize size = gpt2_size(subject.file, args.heads);
  if (!args.vocab.empty()) {
    subject.vocabulary = std::make_shared<Vocabulary>(args.vocab);
    PRIDE_CHECK(static_cast<std::int64_t>(subject.vocabulary->size()) <= size.vocabulary,
                "--vocab ", args.vocab, " has ", subject.vocabulary->size(),
                " tokens, the model only ", size.vocabulary);
  } else {
    PRIDE_CHECK(size.vocabulary == 256, "this model has ", size.vocabulary,
                " tokens, which are not bytes: give --vocab FOLDER");
  }
  subject.device = device_of(args.device);
  subject.model = std::make_unique<Gpt>(size);
  load_gpt2(subject.file, *subject.model);
  subject.model->move_to(subject.device);
  return subject;
}

// Progress on standard error: every 0.2 s on a terminal, otherwise every 5 s.
class Countdown {
 public:
  Countdown(std::string name, std::size_t n, bool quiet)
      : name_(std::move(name)), n_(n), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

  void tell(std::size_t done) {
    const Clock::time_point now = Clock::now();
    if (quiet_ ||
        now - told_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(5))) {
      return;
    }
    told_ = now;
    const double seconds = seconds_since(start_);
    // the longest questions come first, so this is an upper bound
    const double left = seconds / static_cast<double>(done) * static_cast<double>(n_ - done);
    std::cerr << (terminal_ ? "\r\033[K" : "") << name_ << ": " << done << '/' << n_
              << " questions, at most " << clock_text(left) << " left" << (terminal_ ? "" : "\n")
              << std::flush;
    open_ = terminal_;
  }
  ~Countdown() {
    if (open_) std::cerr << "\r\033[K" << std::flush;
  }
  Countdown(const Countdown&) = delete;
  Countdown& operator=(const Countdown&) = delete;

 private:
  std::string name_;
  std::size_t n_;
  bool quiet_, terminal_, open_ = false;
  Clock::time_point start_ = Clock::now(), told_ = start_;
};

// The result of one task.
struct Result {
  Tally tally;
  EncodedSet asked;
  double majority = 0, seconds = 0;
  std::string delimiter;
};

double share(std::int64_t right, const Tally& tally) {
  return static_cast<double>(right) / static_cast<double>(tally.questions);
}

Json error_json(std::int64_t right, const Tally& tally) {
  const std::optional<double> error = standard_error(right, tally.questions);
  return error ? Json(*error) : Json(nullptr);
}

Json prediction_json(const Subject& subject, const std::string& task, const EncodedQuestion& asked,
                     const std::vector<double>& scores) {
  const Picks picks = picks_of(asked, scores);
  Json tokens = Json::array(), bytes = Json::array();
  for (std::size_t i = 0; i < asked.choices.size(); ++i) {
    tokens.push_back(asked.choices[i].size());
    bytes.push_back(asked.question->choices[i].size());
  }
  return {{"task", task},
          {"place", asked.question->place},
          {"gold", asked.question->gold},
          {"pick", picks.by_sum},
          {"pick_norm", picks.by_byte},
          {"pick_token", picks.by_token},
          {"log_probs", scores},
          {"bytes", bytes},
          {"tokens", tokens},
          {"cut", asked.cut},
          {"prompt", subject.text_of(asked.prompt)}};
}

Result evaluate(const Subject& subject, const QuestionSet& set, const EvaluateArguments& args,
                std::string& predictions) {
  const Clock::time_point start = Clock::now();
  const auto context = static_cast<std::size_t>(subject.model->size().context);
  QuestionEncoder encoder(
      subject.vocabulary,
      {.shots = args.shots, .seed = args.seed, .delimiter = args.delimiter, .context = context});
  Result result;
  result.delimiter = args.delimiter.value_or(set.delimiter());
  result.asked = encoder.encode_part(set, parse_part(args.part), args.skip_long,
                                     args.limit == 0 ? SIZE_MAX : args.limit);
  const std::vector<EncodedQuestion>& questions = result.asked.questions;
  Countdown progress(set.name(), questions.size(), args.quiet);
  const ScoreOptions options = {
      .batch = args.batch, .threads = args.threads, .device = subject.device};
  const auto scores =
      score_all(*subject.model, questions, options, [&](std::size_t done) { progress.tell(done); });
  QuestionList asked;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    asked.push_back(questions[i].question);
    result.tally.add(questions[i], scores[i]);
    if (args.predictions.empty()) continue;
    // a prompt may not be UTF-8, or begin inside a character
    predictions += prediction_json(subject, set.name(), questions[i], scores[i])
                       .dump(-1, ' ', false, Json::error_handler_t::replace) +
                   "\n";
  }
  if (!std::isfinite(result.tally.loss)) {
    throw Error(concat(subject.file.string(), ": the model's scores are NaN or Inf"));
  }
  result.majority = majority(asked);
  result.seconds = seconds_since(start);
  return result;
}

Json result_json(const Subject& subject, const QuestionSet& set, const EvaluateArguments& args,
                 const Result& result) {
  const Tally& t = result.tally;
  return {{"task", set.name()},
          {"file", set.file().string()},
          {"data_hash", hex16(set.hash())},
          {"model", subject.file.string()},
          {"model_hash", hex16(file_hash(subject.file))},
          {"part", args.part},
          {"shots", args.shots},
          {"seed", args.seed},
          {"delimiter", result.delimiter},
          {"questions", t.questions},
          {"acc", share(t.by_sum, t)},
          {"acc_stderr", error_json(t.by_sum, t)},
          {"acc_norm", share(t.by_byte, t)},
          {"acc_norm_stderr", error_json(t.by_byte, t)},
          {"acc_token", share(t.by_token, t)},
          {"acc_token_stderr", error_json(t.by_token, t)},
          {"chance", t.chance / static_cast<double>(t.questions)},
          {"majority", result.majority},
          {"answer_loss", t.loss / static_cast<double>(t.answer_tokens)},
          {"cut_prompts", result.asked.n_cut},
          {"cut_tokens", result.asked.cut_tokens},
          {"left_out", result.asked.n_left_out},
          {"seconds", result.seconds}};
}

std::vector<std::string> row_of(const QuestionSet& set, const Result& result) {
  const Tally& t = result.tally;
  const auto cell = [&](std::int64_t right) {
    const std::optional<double> error = standard_error(right, t.questions);
    return decimals(share(right, t), 3) + (error ? " ± " + decimals(*error, 3) : "");
  };
  return {set.name(),
          concat(t.questions),
          cell(t.by_sum),
          cell(t.by_byte),
          cell(t.by_token),
          decimals(t.chance / static_cast<double>(t.questions), 3),
          decimals(result.majority, 3)};
}

// All tasks have equal weight, whatever their number of questions.
std::vector<std::string> mean_row(const std::vector<Result>& results) {
  const auto mean = [&](const auto& value) {
    double sum = 0;
    for (const Result& result : results) sum += value(result);
    return decimals(sum / static_cast<double>(results.size()), 3);
  };
  return {
      "mean",
      "",
      mean([](const Result& r) { return share(r.tally.by_sum, r.tally); }),
      mean([](const Result& r) { return share(r.tally.by_byte, r.tally); }),
      mean([](const Result& r) { return share(r.tally.by_token, r.tally); }),
      mean([](const Result& r) { return r.tally.chance / static_cast<double>(r.tally.questions); }),
      mean([](const Result& r) { return r.majority; })};
}

void evaluate_all(EvaluateArguments& args) {
  pin_threads();
  parse_part(args.part);
  const std::vector<QuestionSet> sets = read_question_sets({args.tasks.begin(), args.tasks.end()});
  const Subject subject = load(args);
  if (args.threads == 0)
    args.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (subject.device != at::kCPU) args.threads = 1;
  std::optional<PendingFile> file;
  if (!args.predictions.empty()) file.emplace(args.predictions);
  std::vector<Result> results;
  std::vector<std::vector<std::string>> rows = {
      {"task", "questions", "acc", "acc_norm", "acc_token", "chance", "majority"}};
  for (const QuestionSet& set : sets) {
    std::string predictions;
    results.push_back(evaluate(subject, set, args, predictions));
    if (file) file->write(predictions.data(), predictions.size());
    // also with --json
    for (const std::string& note : results.back().asked.notes(set.name())) {
      std::cerr << note << '\n';
    }
    rows.push_back(row_of(set, results.back()));
    if (args.json) {
      std::cout << result_json(subject, set, args, results.back())
                       .dump(-1, ' ', false, Json::error_handler_t::replace)
                << std::endl;
    }
  }
  if (file) file->commit();
  if (args.json) return;
  if (results.size() > 1) rows.push_back(mean_row(results));
  std::cout << markdown_table(rows, 1);
}

void run_evaluate(EvaluateArguments& args) {
  with_short_errors([&] { evaluate_all(args); });
}

void add_prompt_flags(CLI::App& command, EvaluateArguments& args) {
  add_value(command, "--shots", args.shots, "Examples with answers before each question",
            {0, kMostOfASize});
  add_value(command, "--seed", args.seed, "Seed that chooses the examples of each question");
  add_value(command, "--part", args.part,
            "Questions to use: all; train: those that `pride train --task fewshot` trains on; "
            "held-out: those that it never sees");
  add_value(command, "--limit", args.limit, "Only the first N questions of each task. 0: all");
  command.add_option("--delimiter", args.delimiter,
                     "Text between a query and its answer. Default: \"\\nAnswer: \" for tasks "
                     "whose queries contain \"Question:\", otherwise a blank");
  command.add_flag(
      "--skip-long", args.skip_long,
      "Leave out questions with a choice longer than the context, instead of an error");
}

}  // namespace

void add_evaluate(CLI::App& command) {
  EvaluateArguments& args = arguments_of(command, run_evaluate);
  command
      .add_option("--model,--init", args.model,
                  "Folder with model.safetensors and config.json (the --out of `pride train`, a "
                  "checkpoint of it, or Hugging Face's GPT-2), or the file itself")
      ->required();
  command
      .add_option("--tasks", args.tasks,
                  "Files of questions, or folders of *.jsonl. Each line: {\"query\": text, "
                  "\"choices\": [text, ...], \"gold\": index}")
      ->required();
  command.add_option("--vocab", args.vocab,
                     "Folder with encoder.json and vocab.bpe; not for byte models");
  add_prompt_flags(command, args);
  add_value(command, "--batch", args.batch, "Questions per batch; does not change scores",
            {1, kMostOfASize});
  add_value(command, "--threads", args.threads, "Parallel batches. 0: one per core", {0, 1024});
  add_value(command, "--device", args.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  add_value(command, "--heads", args.heads, "Attention heads, if config.json is missing",
            {1, kMostOfASize});
  command.add_option("--predictions", args.predictions,
                     "File for a JSON line per question: prompt, scores, picks");
  command.add_flag("--json", args.json, "A JSON line per task instead of a table");
  command.add_flag("--quiet", args.quiet, "No progress on standard error");
}

}  // namespace pride::app
