// SPDX-License-Identifier: Apache-2.0
#include "experiments/experiment.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "pride/error.h"
#include "program/io/mapped_file.h"
#include "program/utf8.h"
#include "train/flags.h"
#include "train/toml_values.h"

namespace pride::app {
namespace {

constexpr std::size_t kLongestLabel = 100;  // characters; folders' names begin with a label

// A flag of `pride train`, to test values; null if there is none.
CLI::Option* trial_option(const std::string& flag) {
  static TrainOptions options;
  static CLI::App& app = []() -> CLI::App& {
    static CLI::App made("", "pride train");
    add_train_flags(made, options);
    return made;
  }();
  return app.get_option_no_throw("--" + flag);
}

// The parser's error for a value of a flag; empty: the value is valid.
std::string why_not(const std::string& flag, const std::string& value) {
  // on a command line, an empty value would take the next word
  if (value.empty()) return concat("--", flag, ": an empty value");
  CLI::Option* option = trial_option(flag);
  try {
    option->clear();
    option->add_result(value);
    option->run_callback();
    return "";
  } catch (const CLI::Error& error) {
    return error.what();
  }
}

// Reads the tables of one file; messages begin with "FILE:LINE: ".
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Experiment read(const toml::table& root) const {
    Experiment found;
    for (const auto& [name, value] : root) {
      const std::string key(name.str());
      if (key == "title" || key == "note") {
        if (!value.is_string()) refuse(value, "'", key, "' must be a string");
        (key == "title" ? found.title : found.note) = text(value, key);
      } else if (key == "train") {
        found.shared = flag_values(table(value, key), {});
      } else if (key == "grid") {  // or [[grid]] several times
        if (!value.is_array()) found.grids.push_back(grid(value));
        if (!value.is_array()) continue;
        for (const toml::node& one : *value.as_array()) found.grids.push_back(grid(one));
      } else if (key == "method") {
        for (const auto& [label, settings] : table(value, key)) {
          found.own[std::string(label.str())] = own(settings, std::string(label.str()));
        }
      } else if (key == "tune") {
        found.tune = tuning(value);
      } else {
        refuse(value, "unknown key '", key,
               "'; known are title, note, train, grid, method and tune");
      }
    }
    return found;
  }

 private:
  template <typename... Words>
  [[noreturn]] void refuse(const toml::node& node, const Words&... words) const {
    throw InvalidArgument(concat(file_, ":", node.source().begin.line, ": ", words...));
  }

  const toml::table& table(const toml::node& node, const std::string& key) const {
    const toml::table* found = node.as_table();
    if (found == nullptr) refuse(node, "'", key, "' must be a table");
    return *found;
  }

  std::string text(const toml::node& node, const std::string& key) const {
    if (const auto found = toml_text(node)) return *found;
    refuse(node, "'", key, "' must be a string, a number or true/false, or a list of them");
  }

  std::vector<std::string> texts(const toml::node& node, const std::string& key) const {
    const toml::array* list = node.as_array();
    if (list == nullptr) return {text(node, key)};
    std::vector<std::string> found;
    for (const toml::node& item : *list) {
      const std::string value = text(item, key);
      if (std::ranges::count(found, value) > 0) refuse(item, "'", key, "' has ", value, " twice");
      found.push_back(value);
    }
    if (found.empty()) refuse(node, "'", key, "' is an empty list");
    return found;
  }

  // The flag of a key with its values, which are an axis's alternatives, or for method-opt all set
  // together. Refuses a value that the parser rejects.
  Axis axis(const toml::node& node, const std::string& key) const {
    Axis found{.flag = key, .values = texts(node, key)};
    for (std::string& value : found.values) {
      const Flag* flag = flag_of(key, value);
      if (flag == nullptr) {
        refuse(node, "unknown key '", key, "'; `pride train --help` lists the flags");
      }
      if (flag->rules.by_experiment) refuse(node, "'", key, "' cannot be set here");
      found.flag = flag->name;
      const std::string why = why_not(found.flag, value);
      if (!why.empty()) refuse(node, why);
    }
    return found;
  }

  Axis varied_axis(const toml::node& node, const std::string& key) const {
    if (key == kMethodOption) {
      refuse(node,
             "'method-opt' cannot be an axis; give it in the [method.LABEL] of several labels");
    }
    return axis(node, key);
  }

  std::vector<Axis> axes(const toml::node& node, const std::string& key) const {
    std::vector<Axis> found;
    for (const auto& [name, value] : table(node, key)) {
      found.push_back(varied_axis(value, std::string(name.str())));
    }
    return found;
  }

  FlagValues flag_values(const toml::table& from, const std::set<std::string>& but) const {
    FlagValues values;
    for (const auto& [name, value] : from) {
      const std::string key(name.str());
      if (but.contains(key)) continue;
      Axis found = axis(value, key);
      if (value.is_array() && key != kMethodOption) {
        refuse(value, "'", key, "' has several values: move it to [grid]");
      }
      values[found.flag] = std::move(found.values);
    }
    return values;
  }

  std::uint64_t seed(const toml::node& node, const std::string& text) const {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || at != end) {
      refuse(node, "seed ", text, ": must be a whole number from 0 to 18446744073709551615");
    }
    return value;
  }

  Grid grid(const toml::node& node) const {
    Grid found;
    for (const auto& [name, value] : table(node, "grid")) {
      const std::string key(name.str());
      if (key == "method") {
        found.labels = texts(value, key);
      } else if (key == "seed") {
        for (const std::string& one : texts(value, key)) found.seeds.push_back(seed(value, one));
      } else {
        found.axes.push_back(varied_axis(value, key));
      }
    }
    if (found.labels.empty()) refuse(node, "[grid] has no 'method'");
    if (found.seeds.empty()) refuse(node, "[grid] has no 'seed'");
    return found;
  }

  OwnSettings own(const toml::node& node, const std::string& label) const {
    OwnSettings found{.method = label, .line = node.source().begin.line};
    for (const auto& [name, value] : table(node, "method." + label)) {
      const std::string key(name.str());
      if (key == "method") {
        found.method = text(value, key);
      } else if (key == "tune") {
        found.tune = axes(value, key);
      } else if (key == kMethodOption) {
        found.options = texts(value, key);
      } else {
        found.axes.push_back(axis(value, key));
      }
    }
    return found;
  }

  Tuning tuning(const toml::node& node) const {
    const toml::table& from = table(node, "tune");
    Tuning found;
    const auto word = [&](const char* key, const char* first, const char* second) {
      const toml::node* value = from.get(key);
      const std::string given = value != nullptr ? text(*value, key) : first;
      if (given == first || given == second) return given;
      refuse(*value, "[tune] ", key, " = \"", given, "\": must be \"", first, "\" or \"", second,
             "\"");
    };
    if (const toml::node* value = from.get("seed")) found.seed = seed(*value, text(*value, "seed"));
    found.by = word("by", "loss", "accuracy");
    found.climb = word("search", "grid", "climb") == "climb";
    found.flags = flag_values(from, {"seed", "by", "search", "grid"});
    if (const toml::node* value = from.get("grid")) found.grid = axes(*value, "tune.grid");
    if (found.grid.empty()) refuse(node, "[tune] has no 'grid'");
    for (const Axis& axis : found.grid) {
      const std::string* wrong = found.climb ? out_of_order(axis.values) : nullptr;
      if (wrong == nullptr) continue;
      refuse(node, "'", axis.flag, "' has ", *wrong,
             ": search = \"climb\" needs numbers that ascend");
    }
    return found;
  }

  std::string file_;
};

void check_labels(const Experiment& experiment, const std::string& file) {
  std::set<std::string> labels;
  for (const Grid& grid : experiment.grids) {
    labels.insert(grid.labels.begin(), grid.labels.end());
    for (const std::uint64_t seed : grid.seeds) {
      PRIDE_CHECK(!experiment.tune || seed != experiment.tune->seed, file, ": seed ", seed,
                  " of [tune] is one of [grid]; tune on a seed that is not in the results");
    }
  }
  for (const std::string& label : labels) check_label(concat(file, ": method"), label);
  for (const auto& [label, settings] : experiment.own) {
    PRIDE_CHECK(labels.contains(label), file, ":", settings.line, ": [method.", label,
                "]: no grid has this method");
  }
}

}  // namespace

const Flag* flag_of(const std::string& key, std::string& value) {
  const CLI::Option* option = trial_option(key);
  if (option == nullptr || option->get_lnames().empty()) return nullptr;
  const Flag* flag = Flag::find(option->get_lnames().front());
  if (flag == nullptr || flag->name == key) return flag;
  try {
    value = option->get_flag_value(key, value);
  } catch (const std::logic_error&) {
    value = concat("no-", value);  // neither true nor false; the parser reports it
  }
  return flag;
}

void check_label(const std::string& where, const std::string& label) {
  const bool can_name_a_folder = std::ranges::all_of(
      label, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
  PRIDE_CHECK(can_name_a_folder && !label.empty(), where, " '", label,
              "': a label is made of letters, digits, '-', '_' and '.'");
  PRIDE_CHECK(label.size() <= kLongestLabel, where, " '", label, "': a label has at most ",
              kLongestLabel, " characters");
}

Experiment read_experiment(const std::filesystem::path& file) {
  check_utf8("experiment", file.string());
  const std::string text(MappedFile(file).text());
  Experiment experiment = Reader(file.string()).read(parse_toml(text, file.string()));
  experiment.where = file.string();
  experiment.name = file.stem().string();
  experiment.text = text;
  PRIDE_CHECK(!experiment.grids.empty(), file.string(), ": has no [grid]");
  check_labels(experiment, file.string());
  return experiment;
}

}  // namespace pride::app
