// SPDX-License-Identifier: Apache-2.0
#include "experiments/experiment.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "pride/error.h"
#include "train/flags.h"
#include "train/io/mapped_file.h"
#include "train/text/utf8.h"
#include "train_names.h"

namespace pride::app {
namespace {

constexpr const char* kMethodOption = "method-opt";
constexpr std::size_t kLongestLabel = 100;  // names of folders begin with it

// The flags of `pride train`, to try values on.
class TrialFlags {
 public:
  TrialFlags() { add_train_flags(app_, options_); }

  // Why its parser would not take the values of a flag; empty if it would.
  std::string why_not(const std::string& flag, const std::vector<std::string>& values) {
    // on a command line it would take the next word
    if (std::ranges::count(values, "") > 0) return concat("--", flag, ": an empty value");
    CLI::Option* option = app_.get_option("--" + flag);
    try {
      option->clear();
      for (const std::string& value : values) option->add_result(value);
      option->run_callback();
      return "";
    } catch (const CLI::Error& error) {
      return error.what();
    }
  }

 private:
  TrainOptions options_;
  CLI::App app_{"", "pride train"};
};

// Reads the tables of one file; messages begin with "FILE:LINE: ".
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Experiment read(const toml::table& root);

 private:
  void try_values(const toml::node& node, const std::string& flag,
                  const std::vector<std::string>& values) {
    if (const std::string why = trial_.why_not(flag, values); !why.empty()) refuse(node, why);
  }
  template <typename... Words>
  [[noreturn]] void refuse(const toml::node& node, const Words&... words) const {
    throw InvalidArgument(concat(file_, ":", node.source().begin.line, ": ", words...));
  }
  const toml::table& table(const toml::node& node, const std::string& key) const;
  std::string text(const toml::node& node, const std::string& key) const;
  std::vector<std::string> texts(const toml::node& node, const std::string& key) const;
  std::string flag(const toml::node& node, std::string_view key) const;
  std::uint64_t seed(const toml::node& node, const std::string& text) const;
  Axis axis(const toml::node& node, std::string_view key);
  FlagValues flag_values(const toml::table& from, const std::set<std::string>& but);
  Grid grid(const toml::node& node);
  void grids(const toml::node& node, Experiment& into);
  OwnSettings own(const toml::node& node, const std::string& label);
  Tuning tuning(const toml::node& node);
  std::vector<Axis> axes(const toml::node& node, const std::string& key);
  void check_ascending(const toml::node& node, const std::vector<Axis>& axes) const;

  std::string file_;
  TrialFlags trial_;
};

const toml::table& Reader::table(const toml::node& node, const std::string& key) const {
  const toml::table* found = node.as_table();
  if (found == nullptr) refuse(node, "'", key, "' must be a table");
  return *found;
}

// the text that the command line would have held
std::string Reader::text(const toml::node& node, const std::string& key) const {
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* value = node.as_integer()) return std::to_string(value->get());
  if (const auto* value = node.as_floating_point()) return number_text(value->get());
  if (const auto* value = node.as_boolean()) return value->get() ? "true" : "false";
  refuse(node, "'", key, "' must be a string, a number or true/false, or a list of them");
}

std::vector<std::string> Reader::texts(const toml::node& node, const std::string& key) const {
  const toml::array* list = node.as_array();
  if (list == nullptr) return {text(node, key)};
  std::vector<std::string> found;
  for (const toml::node& item : *list) {
    found.push_back(text(item, key));
    if (std::count(found.begin(), found.end(), found.back()) > 1) {
      refuse(item, "'", key, "' has ", found.back(), " twice");
    }
  }
  if (found.empty()) refuse(node, "'", key, "' is an empty list");
  return found;
}

std::string Reader::flag(const toml::node& node, std::string_view key) const {
  const std::string name(key);
  const Flag* known = Flag::find(name);
  if (known == nullptr)
    refuse(node, "unknown key '", name, "'; `pride train --help` lists the flags");
  if (known->rules.by_experiment) refuse(node, "'", name, "' cannot be set here");
  return name;
}

std::uint64_t Reader::seed(const toml::node& node, const std::string& text) const {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) {
    refuse(node, "seed ", text, ": must be a whole number from 0 to 18446744073709551615");
  }
  return value;
}

Axis Reader::axis(const toml::node& node, std::string_view key) {
  Axis found{.flag = flag(node, key), .values = {}};
  if (found.flag == kMethodOption) {
    refuse(node, "'method-opt' cannot be an axis; give it in the [method.LABEL] of several labels");
  }
  found.values = texts(node, found.flag);
  for (const std::string& value : found.values) try_values(node, found.flag, {value});
  return found;
}

std::vector<Axis> Reader::axes(const toml::node& node, const std::string& key) {
  std::vector<Axis> found;
  for (const auto& [name, value] : table(node, key)) found.push_back(axis(value, name.str()));
  return found;
}

FlagValues Reader::flag_values(const toml::table& from, const std::set<std::string>& but) {
  FlagValues values;
  for (const auto& [name, value] : from) {
    if (but.contains(std::string(name.str()))) continue;
    const std::string key = flag(value, name.str());
    if (value.is_array() && key != kMethodOption) {
      refuse(value, "'", key, "' has several values: that belongs into [grid]");
    }
    values[key] = texts(value, key);
    try_values(value, key, values[key]);
  }
  return values;
}

Grid Reader::grid(const toml::node& node) {
  Grid found;
  for (const auto& [name, value] : table(node, "grid")) {
    const std::string key(name.str());
    if (key == "method") {
      found.labels = texts(value, key);
    } else if (key == "seed") {
      for (const std::string& one : texts(value, key)) found.seeds.push_back(seed(value, one));
    } else {
      found.axes.push_back(axis(value, key));
    }
  }
  if (found.labels.empty()) refuse(node, "[grid] has no 'method'");
  if (found.seeds.empty()) refuse(node, "[grid] has no 'seed'");
  return found;
}

// [grid], or [[grid]] several times
void Reader::grids(const toml::node& node, Experiment& into) {
  const toml::array* list = node.as_array();
  if (list == nullptr) {
    into.grids.push_back(grid(node));
  } else {
    for (const toml::node& item : *list) into.grids.push_back(grid(item));
  }
}

OwnSettings Reader::own(const toml::node& node, const std::string& label) {
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

// A climb goes from a value to the next: numbers must ascend.
void Reader::check_ascending(const toml::node& node, const std::vector<Axis>& axes) const {
  for (const Axis& axis : axes) {
    double last = -INFINITY;
    for (const std::string& value : axis.values) {
      char* end = nullptr;
      const double number = std::strtod(value.c_str(), &end);
      if (*end != '\0' || number <= last) {
        refuse(node, "'", axis.flag, "' has ", value,
               ": search = \"climb\" needs numbers that ascend");
      }
      last = number;
    }
  }
}

Tuning Reader::tuning(const toml::node& node) {
  const toml::table& from = table(node, "tune");
  Tuning found;
  if (const toml::node* value = from.get("seed")) found.seed = seed(*value, text(*value, "seed"));
  if (const toml::node* value = from.get("by")) found.by = text(*value, "by");
  if (found.by != "loss" && found.by != "accuracy") {
    refuse(node, "[tune] by = \"", found.by, "\": must be \"loss\" or \"accuracy\"");
  }
  if (const toml::node* value = from.get("search")) {
    const std::string search = text(*value, "search");
    if (search != "grid" && search != "climb") {
      refuse(*value, "[tune] search = \"", search, "\": must be \"grid\" or \"climb\"");
    }
    found.climb = search == "climb";
  }
  found.flags = flag_values(from, {"seed", "by", "search", "grid"});
  if (const toml::node* value = from.get("grid")) found.grid = axes(*value, "tune.grid");
  if (found.grid.empty()) refuse(node, "[tune] has no 'grid'");
  if (found.climb) check_ascending(node, found.grid);
  return found;
}

Experiment Reader::read(const toml::table& root) {
  Experiment found;
  for (const auto& [name, value] : root) {
    const std::string key(name.str());
    if (key == "title" || key == "note") {
      if (!value.is_string()) refuse(value, "'", key, "' must be a string");
      (key == "title" ? found.title : found.note) = text(value, key);
    } else if (key == "train") {
      found.shared = flag_values(table(value, key), {});
    } else if (key == "grid") {
      grids(value, found);
    } else if (key == "method") {
      for (const auto& [label, settings] : table(value, key)) {
        found.own[std::string(label.str())] = own(settings, std::string(label.str()));
      }
    } else if (key == "tune") {
      found.tune = tuning(value);
    } else {
      refuse(value, "unknown key '", key, "'; there are title, note, train, grid, method and tune");
    }
  }
  return found;
}

void check_labels(const Experiment& experiment, const std::string& file) {
  std::set<std::string> labels;
  for (const Grid& grid : experiment.grids) {
    labels.insert(grid.labels.begin(), grid.labels.end());
    for (const std::uint64_t seed : grid.seeds) {
      PRIDE_CHECK(!experiment.tune || seed != experiment.tune->seed, file, ": seed ", seed,
                  " of [tune] is one of [grid]; values must be chosen on a seed that is not shown");
    }
  }
  for (const std::string& label : labels) check_label(concat(file, ": method"), label);
  for (const auto& [label, settings] : experiment.own) {
    PRIDE_CHECK(labels.contains(label), file, ":", settings.line, ": [method.", label,
                "]: no grid has this method");
  }
}

std::string whole_file(const std::filesystem::path& file) {
  return std::string(MappedFile(file).text());
}

toml::table parse(const std::string& text, const std::string& file) {
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw DataError(
        concat(file, ":", error.source().begin.line, ": not TOML: ", error.description()));
  }
}

}  // namespace

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
  const std::string text = whole_file(file);
  const toml::table root = parse(text, file.string());
  Experiment experiment = Reader(file.string()).read(root);
  experiment.where = file.string();
  experiment.name = file.stem().string();
  experiment.text = text;
  PRIDE_CHECK(!experiment.grids.empty(), file.string(), ": has no [grid]");
  check_labels(experiment, file.string());
  return experiment;
}

}  // namespace pride::app
