// The settings that a command line holds.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <set>

#include "settings_of.h"

namespace pride::app {

Settings settings_of(const CLI::App& command) {
  static const std::set<std::string> kMayDiffer = {
      "data", "vocab",     "init",    "loader-threads",      "json",   "svg",
      "help", "transport", "timeout", "threads-per-process", "workers"};
  Settings settings;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (kMayDiffer.contains(name)) continue;
    std::string value = option->count() == 0 ? option->get_default_str() : "";
    for (const std::string& part : option->results()) value += (value.empty() ? "" : ",") + part;
    settings.emplace_back("--" + name, value.empty() ? "not given" : value);
  }
  return settings;
}

}  // namespace pride::app
