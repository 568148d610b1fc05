// SPDX-License-Identifier: Apache-2.0
#include "train/settings/groups.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <sstream>
#include <utility>

#include "pride/choose_tensors.h"
#include "pride/error.h"
#include "pride/registry.h"
#include "program/settings.h"

namespace pride::train {
namespace {

constexpr std::pair<const char*, std::optional<double> ParamGroup::*> kNumbers[] = {
    {"lr", &ParamGroup::lr},
    {"beta1", &ParamGroup::beta1},
    {"beta2", &ParamGroup::beta2},
    {"eps", &ParamGroup::eps},
    {"momentum", &ParamGroup::momentum},
    {"weight-decay", &ParamGroup::weight_decay}};

bool has_option(const MethodInfo& info, const std::string& name) {
  return std::ranges::count(info.options, name, &MethodOption::name) > 0;
}

// Moves the hyper-parameters among the settings to the group. signsgd-ef's `momentum` is an option.
void take_numbers(const std::string& where, const MethodInfo& info, OptionMap& settings,
                  ParamGroup& group) {
  for (const auto& [key, member] : kNumbers) {
    const auto found = settings.find(key);
    if (found == settings.end() || has_option(info, key)) continue;
    const auto value = finite_number(found->second);
    PRIDE_CHECK(value && *value >= 0, where, ": ", key, "=", found->second,
                ": must be a number, 0 or more");
    group.*member = *value;
    settings.erase(found);
  }
}

GroupChoice parse_group(const std::string& entry) {
  const std::string where = concat("'", entry, "'");
  const std::size_t colon = std::min(entry.find(':'), entry.size());
  GroupChoice choice{.words = parts_of(entry.substr(0, colon), ',')};
  std::istringstream rest(entry.substr(std::min(colon + 1, entry.size())));
  std::string method;
  rest >> method;
  const std::vector<std::string> settings{std::istream_iterator<std::string>(rest), {}};
  PRIDE_CHECK(!choice.words.empty() && !method.empty(), where,
              ": must be 'WORDS: METHOD [KEY=VALUE]...'");
  const auto names = method_names();
  PRIDE_CHECK(std::ranges::count(names, method) > 0, where, ": no method '", method,
              "'; `pride methods` lists them");
  choice.group.method = method;
  choice.group.options = parse_method_options(settings, where);
  const MethodInfo info = method_info(method, 1);
  take_numbers(where, info, choice.group.options, choice.group);
  for (const auto& option : choice.group.options) {
    PRIDE_CHECK(has_option(info, option.first), where, ": no key '", option.first,
                "'; keys are lr, beta1, beta2, eps, momentum, weight-decay and ", "the options of ",
                method, " (`pride methods --method ", method, "`)");
  }
  return choice;
}

}  // namespace

std::vector<std::string> parts_of(const std::string& text, char separator) {
  constexpr const char* kBlanks = " \t\n";
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, separator);) {
    part.erase(0, part.find_first_not_of(kBlanks));
    part.erase(part.find_last_not_of(kBlanks) + 1);
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::optional<double> finite_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool all = error == std::errc() && end == text.data() + text.size();
  return all && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::vector<GroupChoice> parse_groups(const std::string& text) {
  std::vector<GroupChoice> choices;
  for (const std::string& entry : parts_of(text, ';')) choices.push_back(parse_group(entry));
  PRIDE_CHECK(text.empty() || !choices.empty(), "'", text, "': no entry; write 'WORDS: METHOD'");
  return choices;
}

std::vector<int> entries_of_tensors(const std::string& text, const Layout& layout) {
  const auto choices = parse_groups(text);
  std::vector<int> entries(layout.tensors().size(), 0);
  for (int entry = 1; entry <= std::ssize(choices); ++entry) {
    for (const std::string& word : choices[static_cast<std::size_t>(entry) - 1].words) {
      const auto chosen = choose_tensors("--groups", layout, word);
      PRIDE_CHECK(std::ranges::count(chosen, 1) > 0, "--groups: no tensor is one of '", word, "'");
      for (std::size_t t = 0; t < chosen.size(); ++t) {
        if (chosen[t] == 0) continue;
        PRIDE_CHECK(entries[t] == 0 || entries[t] == entry, "--groups: '", word, "' and entry ",
                    entries[t], " both take the tensor '", layout.tensors()[t].spec.name, "'");
        entries[t] = entry;
      }
    }
  }
  PRIDE_CHECK(choices.empty() || std::ranges::count(entries, 0) > 0, "--groups: no tensor is left ",
              "for --method");
  return entries;
}

}  // namespace pride::train
