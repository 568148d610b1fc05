// Settings from a TOML file, for the flags that the command line left out.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "pride/error.h"
#include "train/flags.h"
#include "train_names.h"

namespace pride::app {
namespace {

std::string place(const std::string& file, const toml::node& node) {
  return concat(file, ":", node.source().begin.line);
}

// the text that the command line would have held
std::string flag_text(const toml::node& node, const std::string& where, const std::string& key) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) {
    std::ostringstream text;
    text.precision(17);
    text << number->get();
    return text.str();
  }
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  throw InvalidArgument(concat(where, ": '", key, "' must be a string, a number or true/false"));
}

std::vector<std::string> flag_texts(const toml::node& node, const std::string& where,
                                    const std::string& key) {
  const toml::array* list = node.as_array();
  if (list == nullptr) return {flag_text(node, where, key)};
  std::vector<std::string> texts;
  for (const toml::node& item : *list) texts.push_back(flag_text(item, where, key));
  return texts;
}

// what the command line's parser would take, or turn into something else, but nobody means
void check_kind(const CLI::Option& option, const toml::node& node, const std::string& where,
                const std::string& key) {
  // "TEXT", or with what checks say of themselves "TEXT:{raise,skip}"
  const std::string named = option.get_type_name();
  const std::string type = named.substr(0, named.find(':'));
  const auto need = [&](bool is_right, const char* kind) {
    PRIDE_CHECK(is_right, where, ": '", key, "' must be ", kind);
  };
  if (option.get_items_expected_max() == 0) return need(node.is_boolean(), "true or false");
  if (type == "TEXT") return need(node.is_string(), "a string");
  if (type == "FLOAT") return need(node.is_number(), "a number");
  if (type.ends_with("|auto"))
    return need(node.is_integer() || node.is_string(), "an integer or \"auto\"");
  // no flag may fall through to this by mistake
  PRIDE_CHECK(type == "INT" || type == "UINT", "--", key, " takes ", named,
              ", unknown to --config");
  need(node.is_integer(), "an integer");
}

void check_kinds(const CLI::Option& option, const toml::node& node, const std::string& where,
                 const std::string& key) {
  const toml::array* list = option.get_items_expected_max() > 1 ? node.as_array() : nullptr;
  if (list == nullptr) return check_kind(option, node, where, key);
  for (const toml::node& item : *list) check_kind(option, item, where, key);
}

// flags that contradict one given on the command line give way to it
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
    check_kinds(*option, node, where, key);
    try {
      option->clear();
      for (std::string& text : flag_texts(node, where, key)) option->add_result(std::move(text));
      option->run_callback();
    } catch (const CLI::Error& error) {
      throw InvalidArgument(concat(where, ": ", error.what()));
    }
  }
}

toml::table parse(const std::string& file) {
  if (!std::filesystem::is_regular_file(file)) {
    throw DataError(concat("--config ", file, ": ",
                           std::filesystem::exists(file) ? "is no regular file" : "no such file"));
  }
  try {
    return toml::parse_file(file);
  } catch (const toml::parse_error& error) {
    throw DataError(
        concat(file, ":", error.source().begin.line, ": not TOML: ", error.description()));
  }
}

}  // namespace

void apply_config(CLI::App& app, const std::string& file) {
  toml::table table = parse(file);
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
