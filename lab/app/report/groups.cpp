// SPDX-License-Identifier: Apache-2.0
#include "report/groups.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "pride/error.h"
#include "pride/train/flags.h"
#include "train_names.h"

namespace pride::app {
namespace {

// settings that change no result, besides those of Role::kSpeed
const std::set<std::string> kNoResult = {"hierarchical", "bucket-coords", "bucket-mb"};

bool is_of_speed(const std::string& flag) {
  return role_of(flag) == Role::kSpeed || kNoResult.contains(flag) || flag == "transport";
}

bool is_setting(const std::string& flag) {
  const Role role = role_of(flag);
  return role != Role::kData && role != Role::kRecords && flag != "seed" && !is_of_speed(flag);
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
  // a job may have no flag --workers
  if (run.world() > 0) settings["workers"] = concat(run.world());
  // defaults of the method, if the summary has them
  const auto& method = run.summary.at("method");
  for (const auto& [flag, key] : {std::pair("lr", "lr"), std::pair("weight-decay", "weight_decay"),
                                  std::pair("beta1", "beta1"), std::pair("beta2", "beta2")}) {
    if (method.contains(key)) settings[flag] = text_of(method.at(key));
  }
  return settings;
}

// True for an off value, which a setting has that an older version did not record.
bool is_off(const std::string& value) {
  return value == "default" || value == "none" || value == "false" || value == "0" ||
         value == "0.0" || value.empty();
}

bool all_in(const SettingTexts& some, const SettingTexts& others) {
  return std::ranges::all_of(some, [&](const auto& setting) {
    const auto other = others.find(setting.first);
    return other != others.end() ? other->second == setting.second : is_off(setting.second);
  });
}

bool same_settings(const SettingTexts& a, const SettingTexts& b) {
  return all_in(a, b) && all_in(b, a);
}

// Settings that affect only a run's time.
SettingTexts speed_of(const RunData& run) {
  SettingTexts settings;
  if (run.summary.contains("transport")) {
    settings["transport"] = text_of(run.summary.at("transport"));
  }
  for (const auto& [flag, value] : run.summary.at("settings").items()) {
    const bool is_limit = flag == "timeout";  // does not affect a run's time
    if (is_of_speed(flag) && !is_limit) settings[flag] = text_of(value);
  }
  return settings;
}

// Files of --metrics without a seed count as different seeds.
nlohmann::json seed_of(const RunData& run) {
  const nlohmann::json& seed = run.summary.at("settings").at("seed");
  return seed.is_null() ? nlohmann::json(run.folder) : seed;
}

std::string section_of(const RunData& run) {
  const auto& s = run.summary;
  return concat(s.at("task").dump(), s.at("model").dump(), s.at("data").at("hash").dump());
}

std::string title_of(const RunData& run) {
  const auto& s = run.summary;
  const nlohmann::json& model = s.at("model");
  std::string title = concat(s.at("task").get<std::string>(), ": ", model.value("name", "model"));
  if (model.contains("parameters")) {
    title += concat(", ", grouped(run.parameters()), " parameters");
  }
  // the hash distinguishes models of one size
  const std::string init =
      model.value("size", nlohmann::json::object()).value("init_hash", std::string());
  return init.empty() ? title : concat(title, ", hash ", init);
}

// The first metric that any run of the section has; a diverged run may lack it.
Metric metric_of(const Section& section) {
  static const std::vector<Metric> kOfTasks = {
      {"accuracy", "test accuracy", "test accuracy, %", 100, true},
      {"perplexity", "validation perplexity", "validation perplexity", 1, false},
      {"loss", "evaluation loss", "evaluation loss, nats", 1, false}};
  static const std::vector<Metric> kOfFiles = {
      {"accuracy", "accuracy", "accuracy, %", 100, true},
      {"perplexity", "perplexity", "perplexity", 1, false},
      {"loss", "evaluation loss", "evaluation loss", 1, false},
      {"train_loss", "training loss", "training loss, mean of the last tenth", 1, false}};
  const auto& metrics = section.of_files ? kOfFiles : kOfTasks;
  for (const Metric& metric : metrics) {
    for (const Group& group : section.groups) {
      for (const RunData* run : group.runs) {
        if (run->final.contains(metric.key)) return metric;
      }
    }
  }
  return metrics.back();
}

void add(Section& section, const RunData& run) {
  if (!run.ok()) section.failed.push_back(&run);
  const SettingTexts settings = settings_of(run);
  const auto same = [&](const Group& g) {
    return g.label == run.label && same_settings(g.settings, settings);
  };
  auto group = std::find_if(section.groups.begin(), section.groups.end(), same);
  if (group == section.groups.end()) {
    group = section.groups.insert(group, Group());
    group->label = run.label;
    group->settings = settings;
  }
  if (run.ok()) return group->runs.push_back(&run);
  ++group->failed;
  group->diverged += run.diverged ? 1 : 0;
}

// Keeps one run per seed in the group; the others are repetitions.
void take_repetitions(Group& group, Section& section) {
  for (const RunData* run : std::exchange(group.runs, {})) {
    const auto same_seed = [&](const RunData* known) { return seed_of(*known) == seed_of(*run); };
    const auto again = std::ranges::find_if(group.runs, same_seed);
    if (again == group.runs.end()) {
      group.runs.push_back(run);
    } else {
      section.repeated.emplace_back(run, *again);
    }
  }
}

// If a seed ran at several speeds (over threads and MPI, with overlap and without), each is a
// separate group, named by the difference.
std::vector<Group> by_speed(const Group& group) {
  std::set<std::string> flags;
  for (const RunData* a : group.runs) {
    for (const RunData* b : group.runs) {
      if (seed_of(*a) != seed_of(*b)) continue;
      const SettingTexts one = speed_of(*a), other = speed_of(*b);
      for (const auto& [flag, value] : one) {
        if (!all_in({{flag, value}}, other)) flags.insert(flag);
      }
    }
  }
  std::vector<Group> groups;
  std::map<SettingTexts, std::size_t> index;
  for (const RunData* run : group.runs) {
    SettingTexts own;
    for (const auto& [flag, value] : speed_of(*run)) {
      if (flags.contains(flag)) own[flag] = value;
    }
    const auto [at, is_new] = index.emplace(own, groups.size());
    if (is_new) {
      groups.push_back(group);
      groups.back().runs.clear();
      groups.back().settings.insert(own.begin(), own.end());
      if (groups.size() > 1) groups.back().failed = groups.back().diverged = 0;
    }
    groups[at->second].runs.push_back(run);
  }
  return groups.empty() ? std::vector{group} : groups;
}

// Flags with several values in the groups of a label; "": in all groups.
std::vector<std::string> differing(const std::vector<Group>& groups, const std::string& label) {
  SettingTexts first;  // value of each flag in the first group that has it
  std::vector<const SettingTexts*> all;
  for (const Group& group : groups) {
    if (!label.empty() && group.label != label) continue;
    first.insert(group.settings.begin(), group.settings.end());
    all.push_back(&group.settings);
  }
  std::vector<std::string> flags;
  for (const auto& [flag, value] : first) {
    const SettingTexts one = {{flag, value}};
    const auto same = [&](const SettingTexts* settings) { return all_in(one, *settings); };
    if (!std::ranges::all_of(all, same)) flags.push_back(flag);
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
  const std::vector<std::string> flags = differing(section.groups, "");
  for (const std::string& flag : flags) {
    if (role_of(flag) != Role::kMethod && !is_of_speed(flag)) section.varied.push_back(flag);
  }
  for (const auto& [flag, value] : section.groups.front().settings) {
    if (std::ranges::count(flags, flag) == 0) section.shared[flag] = value;
  }
  section.columns = section.varied;
  for (const char* flag : {"lr", "weight-decay"}) {
    if (std::ranges::count(flags, flag) > 0) section.columns.emplace_back(flag);
  }
  std::vector<std::string> rows;
  for (Group& group : section.groups) {
    auto own = differing(section.groups, group.label);
    const auto named = [&] {
      return group.label + (own.empty() ? "" : ", ") + values_of(group, own);
    };
    group.name = named();
    std::erase_if(own, [&](const std::string& flag) {
      return std::ranges::count(section.columns, flag) > 0;
    });
    group.row = named();
    group.facet = values_of(group, section.varied);
    const auto at = std::find(rows.begin(), rows.end(), group.row);
    group.color = static_cast<int>(at - rows.begin());
    if (at == rows.end()) rows.push_back(group.row);
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
    if (is_new) sections.emplace_back().title = title_of(run);
    sections[at->second].of_files |= run.of_file;
    add(sections[at->second], run);
  }
  for (Section& section : sections) {
    for (const Group& whole : std::exchange(section.groups, {})) {
      for (Group& group : by_speed(whole)) {
        take_repetitions(group, section);
        section.groups.push_back(std::move(group));
      }
    }
    name_groups(section);
    section.metric = metric_of(section);
  }
  return sections;
}

std::vector<std::string> notes_of(const Loaded& loaded, const std::vector<Section>& sections) {
  std::vector<std::string> notes;
  for (const RunData& run : loaded.runs) {
    for (const std::string& note : run.notes) notes.push_back(concat(run.folder, ": ", note));
  }
  for (const Section& section : sections) {
    for (const RunData* run : section.failed) {
      notes.push_back(concat(run->folder, " is in no chart: ", run->error));
    }
    for (const auto& [run, earlier] : section.repeated) {
      notes.push_back(concat(run->folder, " is in no chart: it repeats ", earlier->folder));
    }
    if (!section.of_files) continue;
    std::size_t n = 0;
    std::string unnamed;
    std::map<std::string, std::set<double>> ends;  // by facet
    for (const Group& group : section.groups) {
      for (const RunData* run : group.runs) {
        ++n;
        ends[group.facet].insert(run->summary.at("steps").get<double>());
        if (run->summary.at("data").at("hash") != "") continue;
        unnamed += (unnamed.empty() ? "" : ", ") + run->folder;
      }
    }
    if (n > 1 && !unnamed.empty()) {
      notes.push_back(unnamed +
                      ": without 'data', so they may have been trained on different data");
    }
    for (const auto& [facet, steps] : ends) {
      if (steps.size() < 2) continue;
      notes.push_back(concat(section.title, facet.empty() ? "" : ", ", facet,
                             ": runs end at different steps, ", grouped(*steps.begin()), " to ",
                             grouped(*steps.rbegin()),
                             "; final results compare them all the same"));
    }
  }
  return notes;
}

Spread final_of(const Section& section, const Group& group) {
  return group.spread([&](const RunData& run) {
    const auto found = run.final.find(section.metric.key);
    return found != run.final.end() ? found->second * section.metric.factor : NAN;
  });
}

}  // namespace pride::app
