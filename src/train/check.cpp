// Help that comes from the registries, and the check of a run's settings.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "pride/error.h"
#include "pride/train/flags.h"
#include "pride/train/model.h"
#include "pride/train/task.h"
#include "train/text/utf8.h"

namespace pride::train {
namespace {

std::string joined(const std::vector<std::string>& words, const char* between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

template <typename Info, typename Text>
std::string joined(const std::vector<Info>& infos, const char* between, const Text& text) {
  std::vector<std::string> words;
  for (const Info& info : infos) words.push_back(text(info));
  return joined(words, between);
}

std::string task_help() {
  return joined(tasks(), ", ",
                [](const TaskInfo& t) { return concat(t.name, " (", t.about, ")"); });
}

std::string data_help() {
  return joined(tasks(), ". ", [](const TaskInfo& t) { return concat(t.name, ": ", t.data); });
}

std::string model_help() {
  return joined(models(), ", ",
                [](const ModelInfo& m) { return concat(m.name, " (", m.about, ")"); });
}

std::string batch_help() {
  return concat("Samples per worker and backward pass. Default: ",
                joined(tasks(), ", ",
                       [](const TaskInfo& t) { return concat(t.default_batch, " for ", t.name); }));
}

template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

void check_number(const Flag& flag, double value) {
  const std::string which = concat("--", flag.name, " ", value, ": must be ");
  PRIDE_CHECK(std::isfinite(value), which, "finite");
  PRIDE_CHECK(flag.rules.above ? value > flag.rules.lowest : value >= flag.rules.lowest, which,
              flag.rules.above ? concat("more than ", flag.rules.lowest)
                               : concat(flag.rules.lowest, " or more"));
  PRIDE_CHECK(flag.rules.below ? value < flag.rules.highest : value <= flag.rules.highest, which,
              flag.rules.below ? "less than " : "at most ", flag.rules.highest);
}

void check_text(const Flag& flag, const std::string& value) {
  check_utf8("--" + flag.name, value);
  PRIDE_CHECK(flag.rules.choices.empty() || std::ranges::count(flag.rules.choices, value) > 0, "--",
              flag.name, " ", value, ": must be one of ", joined(flag.rules.choices));
  const std::string wrong = flag.rules.wrong != nullptr ? flag.rules.wrong(value) : "";
  PRIDE_CHECK(wrong.empty(), "--", flag.name, ": ", wrong);
}

template <typename T>
void check_value(const Flag& flag, const T& value) {
  if constexpr (kIsOptional<T>) {
    if (value) check_value(flag, *value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    check_text(flag, value);
  } else if constexpr (!std::is_same_v<T, bool> && std::is_arithmetic_v<T>) {
    check_number(flag, static_cast<double>(value));
  }
}

// A flag that some tasks have is refused by the others.
void check_task_has(const Flag& flag, const TaskInfo& task) {
  std::vector<std::string> names;
  for (const TaskInfo& other : tasks()) {
    if (std::ranges::count(other.flags, flag.name) > 0) names.push_back(other.name);
  }
  PRIDE_CHECK(names.empty() || std::ranges::count(task.flags, flag.name) > 0, "--", flag.name,
              " is for ", joined(names, " and "), " only");
}

}  // namespace

std::string help_of(const Flag& flag) {
  if (flag.name == "task") return task_help();
  if (flag.name == "data") return data_help();
  if (flag.name == "model") return model_help();
  if (flag.name == "batch") return batch_help();
  return flag.help;
}

void check(const TrainOptions& options) {
  const TaskInfo* task = options.task.empty() ? nullptr : &task_info(options.task);
  for (const Flag& flag : Flag::table()) {
    if (!flag.given(options)) continue;
    std::visit([&](auto member) { check_value(flag, options.*member); }, flag.member);
    if (task != nullptr) check_task_has(flag, *task);
    const Flag* rival = Flag::find(flag.rules.rival);
    PRIDE_CHECK(rival == nullptr || !rival->given(options), "--", flag.name, " and --",
                flag.rules.rival, ": give one of them");
    const Flag* needed = Flag::find(flag.rules.needs);
    PRIDE_CHECK(needed == nullptr || needed->given(options), "--", flag.name, " needs --",
                flag.rules.needs);
  }
}

}  // namespace pride::train
