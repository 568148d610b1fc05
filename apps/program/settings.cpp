// Settings are compared by their hashes.
// SPDX-License-Identifier: Apache-2.0
#include "program/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <vector>

#include "pride/agreement.h"
#include "pride/digest.h"
#include "pride/error.h"
#include "pride/registry.h"

namespace pride::inline program {

void check_same_settings(Communicator& comm, const Settings& settings) {
  const Communicator::Scope scope(comm, "start-up check of the settings");
  std::string names;
  std::vector<std::uint64_t> mine;
  for (const auto& [name, value] : settings) {
    names += name + "\n";
    mine.push_back(Digest().text(value).value());
  }
  const std::string others =
      ranks_that_differ(gather_rows(comm, {Digest().text(names).value()}), 1, 0);
  PRIDE_CHECK(others.empty(), "rank(s) ", others,
              " run another command than rank 0; all ranks of a job need the same");
  const auto all = gather_rows(comm, mine);
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::string ranks = ranks_that_differ(all, mine.size(), k);
    PRIDE_CHECK(ranks.empty(), settings[k].first, " differs: rank(s) ", ranks,
                " have another value than rank 0 (here ", settings[k].second,
                "); all ranks of a job need the same settings");
  }
}

// Keeps an empty part, also behind a last colon, so that it is refused as no key=value.
MethodChoice parse_method(const std::string& text) {
  std::size_t end = std::min(text.find(':'), text.size());
  MethodChoice choice{text.substr(0, end), {}};
  while (end < text.size()) {
    const std::size_t begin = end + 1;
    end = std::min(text.find(':', begin), text.size());
    choice.options.push_back(text.substr(begin, end - begin));
  }
  return choice;
}

std::map<std::string, std::string> checked_options(const MethodChoice& choice) {
  const MethodInfo info = method_info(choice.name, 1);
  std::string entry = choice.name;
  for (const std::string& option : choice.options) entry += ":" + option;
  auto options = parse_method_options(choice.options, concat("--methods ", entry));
  for (const auto& option : options) {
    const bool known = std::ranges::count(info.options, option.first, &MethodOption::name) > 0;
    PRIDE_CHECK(known, choice.name, ": no option '", option.first, "'");
  }
  return options;
}

void check_method(const std::string& text, int world) {
  const MethodChoice choice = parse_method(text);
  const Layout layout({{"w", {64}}});
  method_cost(choice.name, layout, {.options = checked_options(choice), .world = world});
}

std::map<std::string, std::string> parse_method_options(const std::vector<std::string>& texts,
                                                        const std::string& where) {
  std::map<std::string, std::string> parsed;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    PRIDE_CHECK(equals != std::string::npos && equals > 0, where, ": '", text,
                "' must be key=value");
    const bool is_new = parsed.emplace(text.substr(0, equals), text.substr(equals + 1)).second;
    PRIDE_CHECK(is_new, where, ": '", text.substr(0, equals), "' is given twice");
  }
  return parsed;
}

namespace {

// 0: no number.
int ranks_per_node(const std::string& value) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto [stopped, error] = std::from_chars(value.data(), end, number);
  return error == std::errc() && stopped == end && number > 0 ? number : 0;
}

// For each rank the first rank on its machine.
std::vector<int> node_of_rank(Communicator& comm) {
  using Name = std::array<char, 512>;
  Name mine{};
  node_name().copy(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<int> nodes;
  for (const Name& name : all) {
    const auto first = std::ranges::find(all, name);
    nodes.push_back(static_cast<int>(std::distance(all.begin(), first)));
  }
  return nodes;
}

}  // namespace

std::string wrong_hierarchical(const std::string& value) {
  if (value == "auto" || ranks_per_node(value) > 0) return "";
  return concat("'", value, "': must be a number of ranks per node, or auto");
}

Nodes nodes_of(Communicator& comm, const std::string& value) {
  return value == "auto" ? Nodes(node_of_rank(comm)) : nodes_of_threads(comm.size(), value);
}

int local_rank(Communicator& comm) {
  const std::vector<int> nodes = node_of_rank(comm);
  const auto mine = nodes.begin() + comm.rank();
  return static_cast<int>(std::count(nodes.begin(), mine, *mine));
}

Nodes nodes_of_threads(int world, const std::string& value) {
  if (value.empty()) return {};
  if (value == "auto") return Nodes::of_size(world, world);
  const int per_node = ranks_per_node(value);
  PRIDE_CHECK(per_node > 0 && world % per_node == 0, "--hierarchical ", value, ": the ", world,
              " ranks cannot be divided into nodes of this size");
  return Nodes::of_size(world, per_node);
}

}  // namespace pride::inline program
