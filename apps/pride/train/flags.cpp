// The table of settings as flags of CLI11.
// SPDX-License-Identifier: Apache-2.0
#include "train/flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "flag_values.h"
#include "pride/error.h"
#include "train_names.h"

namespace pride::app {
namespace {

// Error text for the value of a flag; CLI11 itself would let pass what std::stoll throws.
std::string neither_true_nor_false(const std::string& value) {
  try {
    CLI::detail::to_flag_value(value);
    return "";
  } catch (const std::logic_error&) {
    return concat(value, " is neither true nor false");
  }
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
  const std::string name = "--" + flag.name;
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, std::optional<bool>>) {
    // not add_flag(..., value): it would begin with false
    option = app.add_flag_function(
        name + ",!--no-" + flag.name, [&value](std::int64_t given) { value = given > 0; },
        help_of(flag));
    option->check([](const std::string& text) { return neither_true_nor_false(text); });
  } else if constexpr (std::is_same_v<T, bool>) {
    option = app.add_flag(name, value, help_of(flag));
  } else {
    option = app.add_option(name, value, help_of(flag));
    // of others than integers the table's limits are checked with the settings
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
    static const std::vector<std::string> kNames = {"sharding",      "seed",          "vote-weight",
                                                    "batch",         "accumulate",    "bucket-mb",
                                                    "bucket-coords", "loader-threads"};
    return flag.role == Role::kData || flag.role == Role::kTask ||
           std::ranges::count(kNames, flag.name) > 0;
  };
  add_flags(app, options, wanted);
}

}  // namespace pride::app
