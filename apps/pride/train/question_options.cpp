// SPDX-License-Identifier: Apache-2.0
#include "train/question_options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "integer_check.h"
#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::int64_t kMostQuestions = std::int64_t{1} << 20;
constexpr const char* kGroup = "Task";

}  // namespace

void add_question_flags(CLI::App& app, TrainOptions& o) {
  app.add_option("--examples", o.examples,
                 "fewshot: questions of each task to train on, chosen by the seed. 0: all of those "
                 "that are to train on")
      ->capture_default_str()
      ->check(integer_check<std::int64_t>(0, kMostQuestions))
      ->group(kGroup);
  app.add_option("--shots", o.shots,
                 "fewshot: questions with their answers before each question of an evaluation")
      ->capture_default_str()
      ->check(integer_check<std::int64_t>(0, kMostQuestions))
      ->group(kGroup);
  app.add_flag("--skip-long", o.skip_long,
               "fewshot: leave out questions with a choice that is longer than the context, which "
               "are an error otherwise")
      ->group(kGroup);
}

void check_question_options(const TrainOptions& o) {
  const bool questions = o.task == "fewshot";
  PRIDE_CHECK(o.shots == 0 || questions, "--shots is for fewshot only");
  PRIDE_CHECK(o.examples == 0 || questions, "--examples is for fewshot only");
  PRIDE_CHECK(!o.skip_long || questions, "--skip-long is for fewshot only");
}

}  // namespace pride::app
