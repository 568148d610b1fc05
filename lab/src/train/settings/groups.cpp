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
    {"weight-decay", &ParamGroup::weight_decay}};

// The parts between the separators, without blanks around them; empty ones are left out.
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

// Moves the hyper-parameters among the settings to the group.
void take_numbers(const std::string& where, OptionMap& settings, ParamGroup& group) {
  for (const auto& [key, member] : kNumbers) {
    const auto found = settings.find(key);
    if (found == settings.end()) continue;
    const std::string& text = found->second;
    double value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    PRIDE_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0 &&
                    std::isfinite(value),
                where, ": ", key, "=", text, ": must be a number, 0 or more");
    group.*member = value;
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
  take_numbers(where, choice.group.options, choice.group);
  const MethodInfo info = method_info(method, 1);
  for (const auto& option : choice.group.options) {
    PRIDE_CHECK(std::ranges::count(info.options, option.first, &MethodOption::name) > 0, where,
                ": no key '", option.first, "'; keys are lr, beta1, beta2, eps, weight-decay and ",
                "the options of ", method, " (`pride methods --method ", method, "`)");
  }
  return choice;
}

}  // namespace

std::vector<GroupChoice> parse_groups(const std::string& text) {
  std::vector<GroupChoice> choices;
  for (const std::string& entry : parts_of(text, ';')) choices.push_back(parse_group(entry));
  PRIDE_CHECK(text.empty() || !choices.empty(), "'", text, "': no entry; write 'WORDS: METHOD'");
  return choices;
}

std::string wrong_groups(const std::string& text) {
  try {
    parse_groups(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
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
