// The table of settings as flags of CLI11, and as keys of a TOML file for flags that are not on the
// command line.
// SPDX-License-Identifier: Apache-2.0
#include "train/flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "pride/error.h"
#include "program/flag_values.h"
#include "program/io/mapped_file.h"
#include "train/toml_values.h"

namespace pride::app {
namespace {

// Error text for a flag's value that is not a boolean, because CLI11 itself accepts it. Its
// to_flag_value() throws as std::stoll does, or from 2.4 on sets errno.
std::string neither_true_nor_false(const std::string& value) {
  errno = 0;
  try {
    CLI::detail::to_flag_value(value);
  } catch (const std::logic_error&) {
    errno = EINVAL;
  }
  return errno == 0 ? "" : concat(value, " is neither true nor false");
}

// A default outside the limits stands for a value that depends on other things.
template <typename T>
bool shows_default(const Flag& flag, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) return !value.empty();
  if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(value) >= flag.rules.lowest;
  return false;
}

template <typename T>
CLI::Option* add(CLI::App& app, const Flag& flag, T& value) {
  using Value = typename NumberIn<T>::type;
  // `pride serve` has --certs, too
  const std::string name = "--" + flag.name + (flag.name == "certificates" ? ",--certs" : "");
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, std::optional<bool>>) {
    // not add_flag(..., value): it would start as false
    option = app.add_flag_function(
        name + ",!--no-" + flag.name, [&value](std::int64_t given) { value = given > 0; },
        help_of(flag));
    option->check([](const std::string& text) { return neither_true_nor_false(text); });
  } else if constexpr (std::is_same_v<T, bool>) {
    option = app.add_flag(name, value, help_of(flag));
  } else {
    option = app.add_option(name, value, help_of(flag));
    // check(TrainOptions) checks the table's limits of other types
    if constexpr (std::is_integral_v<Value>) {
      option->transform(number_reader<Value>({flag.rules.lowest, flag.rules.highest}));
    } else if constexpr (std::is_floating_point_v<Value>) {
      option->transform(number_reader<Value>());
    }
    if (shows_default(flag, value)) option->capture_default_str();
  }
  if (flag.rules.wrong != nullptr) option->check(CLI::Validator(flag.rules.wrong, ""));
  if (!flag.rules.type.empty()) option->type_name(flag.rules.type);
  return option->group(flag.group);
}

template <typename Wanted>
void add_flags(CLI::App& app, TrainOptions& options, const Wanted& wanted) {
  for (const Flag& flag : Flag::table()) {
    if (!wanted(flag)) continue;
    std::visit([&](auto member) { add(app, flag, options.*member); }, flag.member);
  }
  for (const Flag& flag : Flag::table()) {
    if (flag.rules.rival.empty() || !wanted(flag)) continue;
    app.get_option("--" + flag.name)->excludes(app.get_option("--" + flag.rules.rival));
  }
}

}  // namespace

void add_train_flags(CLI::App& app, TrainOptions& options) {
  add_flags(app, options, [](const Flag&) { return true; });
}

void add_workload_flags(CLI::App& app, TrainOptions& options) {
  const auto wanted = [](const Flag& flag) {
    static const std::vector<std::string> kNames = {
        "groups",    "sharding",      "seed",           "vote-weight", "batch",  "accumulate",
        "bucket-mb", "bucket-coords", "loader-threads", "device",      "run-on", "dtype"};
    return flag.role == Role::kData || flag.role == Role::kTask ||
           std::ranges::count(kNames, flag.name) > 0;
  };
  add_flags(app, options, wanted);
}

namespace {

std::string place(const std::string& file, const toml::node& node) {
  return concat(file, ":", node.source().begin.line);
}

// Refuses values that the command line's parser would accept or convert, but that are mistakes.
void check_kind(const CLI::Option& option, const toml::node& node, const std::string& where,
                const std::string& key) {
  // "TEXT", or with the description of a check "TEXT:{raise,skip}"
  const std::string named = option.get_type_name();
  const std::string type = named.substr(0, named.find(':'));
  const auto need = [&](bool is_right, const char* kind) {
    PRIDE_CHECK(is_right, where, ": '", key, "' must be ", kind);
  };
  if (option.get_items_expected_max() == 0) return need(node.is_boolean(), "true or false");
  if (type == "TEXT") return need(node.is_string(), "a string");
  // also in quotes, as in experiment files
  const bool quoted = node.is_string() && number_of(node.as_string()->get());
  if (type == "FLOAT") return need(node.is_number() || quoted, "a number");
  if (type.ends_with("|auto"))
    return need(node.is_integer() || node.is_string(), "an integer or \"auto\"");
  // a new type of flag needs a rule above
  PRIDE_CHECK(type == "INT" || type == "UINT", "--", key, " takes ", named,
              ", unknown to --config");
  need(node.is_integer(), "an integer");
}

// The values of a key, for the option's parser; "no-overlap" inverts its value.
void add_values(CLI::Option& option, const toml::node& node, const std::string& where,
                const std::string& key) {
  const auto add = [&](const toml::node& item) {
    check_kind(option, item, where, key);
    const std::string text = toml_text(item).value();
    const bool is_flag = option.get_items_expected_max() == 0;
    option.add_result(is_flag ? option.get_flag_value(key, text) : text);
  };
  const toml::array* list = option.get_items_expected_max() > 1 ? node.as_array() : nullptr;
  option.clear();
  if (list == nullptr) return add(node);
  for (const toml::node& item : *list) add(item);
}

// True if a flag given on the command line excludes this one.
bool outvoted(const CLI::Option& option, const std::set<const CLI::Option*>& given) {
  for (const CLI::Option* rival : option.get_excludes()) {
    if (given.contains(rival)) return true;
  }
  return false;
}

void apply_table(CLI::App& app, const toml::table& table, const std::string& file,
                 const std::set<const CLI::Option*>& given) {
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    const std::string where = place(file, node);
    CLI::Option* option = key == "config" ? nullptr : app.get_option_no_throw("--" + key);
    if (option == app.get_help_ptr() || option == app.get_help_all_ptr()) option = nullptr;
    PRIDE_CHECK(option != nullptr, where, ": unknown key '", key,
                "'; keys are the names of `pride train` flags");
    if (given.contains(option) || outvoted(*option, given)) continue;
    try {
      add_values(*option, node, where, key);
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw InvalidArgument(concat(where, ": ", error.what()));
    }
  }
}

}  // namespace

void apply_config(CLI::App& app, const std::string& file) {
  toml::table table = parse_toml(MappedFile(file).text(), file);
  std::set<const CLI::Option*> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0) given.insert(option);
  }
  if (const toml::table* section = table["train"].as_table()) {
    apply_table(app, *section, file, given);
    table.erase("train");
  }
  apply_table(app, table, file, given);
}

}  // namespace pride::app
