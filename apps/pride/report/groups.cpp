// SPDX-License-Identifier: Apache-2.0
#include "report/groups.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "pride/error.h"
#include "pride/train/flags.h"
#include "train_names.h"

namespace pride::app {
namespace {

// settings without influence on a result, or that the groups are made of
const std::set<std::string> kNoSetting = {"seed", "hierarchical", "bucket-coords", "bucket-mb"};

bool is_setting(const std::string& flag) {
  const Role role = role_of(flag);
  return role != Role::kData && role != Role::kSpeed && role != Role::kRecords &&
         !kNoSetting.contains(flag);
}

std::string text_of(const nlohmann::json& value) {
  if (value.is_null()) return "default";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string text;
    for (const auto& item : value) text += (text.empty() ? "" : " ") + text_of(item);
    return text.empty() ? "none" : text;
  }
  return value.dump();
}

using SettingTexts = std::map<std::string, std::string>;

SettingTexts settings_of(const RunData& run) {
  SettingTexts settings;
  for (const auto& [flag, value] : run.summary.at("settings").items()) {
    if (is_setting(flag)) settings[flag] = text_of(value);
  }
  // those that were left to the method, as far as they are known
  const auto& method = run.summary.at("method");
  for (const auto& [flag, key] : {std::pair("lr", "lr"), std::pair("weight-decay", "weight_decay"),
                                  std::pair("beta1", "beta1"), std::pair("beta2", "beta2")}) {
    if (method.contains(key)) settings[flag] = text_of(method.at(key));
  }
  return settings;
}

// A setting that an older version did not have yet is as if it were switched off.
bool is_off(const std::string& value) {
  return value == "default" || value == "none" || value == "false" || value == "0" ||
         value == "0.0" || value.empty();
}

bool all_in(const SettingTexts& some, const SettingTexts& others) {
  return std::all_of(some.begin(), some.end(), [&](const auto& setting) {
    const auto other = others.find(setting.first);
    return other != others.end() ? other->second == setting.second : is_off(setting.second);
  });
}

bool same_settings(const SettingTexts& a, const SettingTexts& b) {
  return all_in(a, b) && all_in(b, a);
}

std::string section_of(const RunData& run) {
  const auto& s = run.summary;
  return concat(s.at("task").dump(), s.at("model").dump(), s.at("data").at("hash").dump());
}

std::string title_of(const RunData& run) {
  const auto& s = run.summary;
  const nlohmann::json& model = s.at("model");
  const std::string title =
      concat(s.at("task").get<std::string>(), ": ", model.value("name", "model"), ", ",
             grouped(model.at("parameters")), " parameters");
  // two models of one size are told apart by their content
  const std::string init =
      model.value("size", nlohmann::json::object()).value("init_hash", std::string());
  return init.empty() ? title : concat(title, ", hash ", init);
}

// The first that any run of the section has; one that diverged may lack what the others have.
Metric metric_of(const Section& section) {
  const Metric metrics[] = {
      {"accuracy", "test accuracy", "test accuracy, %", 100, true},
      {"perplexity", "validation perplexity", "validation perplexity", 1, false}};
  for (const Metric& metric : metrics) {
    for (const Group& group : section.groups) {
      for (const RunData* run : group.runs) {
        if (run->final.contains(metric.key)) return metric;
      }
    }
  }
  return {"loss", "evaluation loss", "evaluation loss, nats", 1, false};
}

void add(Section& section, const RunData& run) {
  if (!run.ok()) section.failed.push_back(&run);
  const auto settings = settings_of(run);
  const auto same = [&](const Group& g) {
    return g.label == run.label && same_settings(g.settings, settings);
  };
  auto group = std::find_if(section.groups.begin(), section.groups.end(), same);
  if (group == section.groups.end()) {
    section.groups.push_back(Group());
    group = std::prev(section.groups.end());
    group->label = run.label;
    group->settings = settings;
  }
  if (run.ok()) {
    const auto seed_of = [](const RunData& r) { return r.summary.at("settings").at("seed"); };
    const auto again = std::ranges::find_if(
        group->runs, [&](const RunData* known) { return seed_of(*known) == seed_of(run); });
    if (again != group->runs.end()) return section.repeated.emplace_back(&run, *again), void();
    group->runs.push_back(&run);
  } else {
    ++group->failed;
    group->diverged += run.diverged ? 1 : 0;
  }
}

// Flags of which the groups that `chosen` takes have several values.
template <typename Chosen>
std::vector<std::string> differing(const std::vector<Group>& groups, const Chosen& chosen) {
  SettingTexts first;  // value of each flag in the first group that has it
  std::vector<const SettingTexts*> all;
  for (const Group& group : groups) {
    if (!chosen(group)) continue;
    first.insert(group.settings.begin(), group.settings.end());
    all.push_back(&group.settings);
  }
  std::vector<std::string> flags;
  for (const auto& [flag, value] : first) {
    const SettingTexts one = {{flag, value}};
    const auto same = [&](const SettingTexts* settings) { return all_in(one, *settings); };
    if (!std::all_of(all.begin(), all.end(), same)) flags.push_back(flag);
  }
  return flags;
}

std::string values_of(const Group& group, const std::vector<std::string>& flags) {
  std::string text;
  for (const std::string& flag : flags) {
    text += concat(text.empty() ? "" : ", ", flag, " ", group.setting(flag));
  }
  return text;
}

void name_groups(Section& section) {
  const auto all = [](const Group&) { return true; };
  const std::vector<std::string> flags = differing(section.groups, all);
  for (const std::string& flag : flags) {
    if (!(role_of(flag) == Role::kMethod)) section.varied.push_back(flag);
  }
  for (const auto& [flag, value] : section.groups.front().settings) {
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) section.shared[flag] = value;
  }
  std::vector<std::string> labels;
  for (Group& group : section.groups) {
    const auto own =
        differing(section.groups, [&](const Group& g) { return g.label == group.label; });
    const std::string more = values_of(group, own);
    group.name = group.label + (more.empty() ? "" : ", " + more);
    group.facet = values_of(group, section.varied);
    const auto at = std::find(labels.begin(), labels.end(), group.label);
    group.color = static_cast<int>(at - labels.begin());
    if (at == labels.end()) labels.push_back(group.label);
  }
}

}  // namespace

double Group::bits() const {
  return spread([](const RunData& run) { return run.bytes_per_step; }).mean * 8 / parameters();
}

std::string Group::setting(const std::string& flag) const {
  const auto found = settings.find(flag);
  return found != settings.end() ? found->second : "default";
}

Spread Group::spread(const std::function<double(const RunData&)>& value) const {
  std::vector<double> values;
  for (const RunData* run : runs) values.push_back(value(*run));
  return spread_of(values);
}

std::vector<Section> sections_of(const Loaded& loaded) {
  std::vector<Section> sections;
  std::map<std::string, std::size_t> index;
  for (const RunData& run : loaded.runs) {
    if (run.summary.is_null() || run.tuning) continue;
    const auto [at, is_new] = index.emplace(section_of(run), sections.size());
    if (is_new) {
      sections.push_back(Section());
      sections.back().title = title_of(run);
    }
    Section& section = sections[at->second];
    add(section, run);
  }
  for (Section& section : sections) {
    name_groups(section);
    section.metric = metric_of(section);
  }
  return sections;
}

Spread final_of(const Section& section, const Group& group) {
  return group.spread([&](const RunData& run) {
    const auto found = run.final.find(section.metric.key);
    return found != run.final.end() ? found->second * section.metric.factor : NAN;
  });
}

}  // namespace pride::app
