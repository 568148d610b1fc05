// Comparable runs: runs that differ only in the seed form a group; groups of one task, model and
// data form a section of the report.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "program/table.h"
#include "report/run_data.h"

namespace pride::app {

struct Group {
  std::string label;
  std::string name;   // label, and the values that distinguish it from others of its label
  std::string row;    // the same without the values in a table's columns
  std::string facet;  // "workers 16": varied values that are not the method's own; "": none
  // Without the seed. Settings that affect only time, and the transport, only if they distinguish
  // runs of one seed.
  std::map<std::string, std::string> settings;
  std::vector<const RunData*> runs;  // runs with a result, one per seed
  int failed = 0;                    // number of other runs
  int diverged = 0;                  // number of failed runs that diverged
  int color = 0;                     // one per row

  // REQUIRES: at least one run.
  const nlohmann::json& summary() const { return runs.front()->summary; }
  int world() const { return runs.front()->world(); }
  double parameters() const { return runs.front()->parameters(); }
  double bits() const;  // bits sent per parameter and step
  // "default" if runs of an older version lack the flag.
  std::string setting(const std::string& flag) const;
  Spread spread(const std::function<double(const RunData&)>& value) const;
};

// The metric that the section compares.
struct Metric {
  std::string key;      // of RunData::final: "accuracy", "perplexity", "loss" or "train_loss"
  std::string name;     // "test accuracy"
  std::string heading;  // the same with its unit: "test accuracy, %"
  double factor = 1;    // 100 for shares in percent
  bool more_is_better = false;
};

struct Section {
  std::string title;
  Metric metric;
  std::vector<Group> groups;         // in the order of the runs
  std::vector<std::string> varied;   // flags in which groups differ, without the method's own
  std::vector<std::string> columns;  // columns of a table: these, and rate and decay if they differ
  std::map<std::string, std::string> shared;  // settings that all groups have in common
  std::vector<const RunData*> failed;
  bool of_files = false;  // some run is of --metrics: units, bytes and times are what files say
  // pairs of a run and an earlier run with equal settings and seed; the first is in no group
  std::vector<std::pair<const RunData*, const RunData*>> repeated = {};
};

// Runs without a summary are in no section. `loaded` must outlive the sections.
std::vector<Section> sections_of(const Loaded& loaded);

// What a reader must know of runs that are among the numbers: notes of their files, and what files
// of --metrics in one section may not have in common.
std::vector<std::string> notes_of(const Loaded& loaded, const std::vector<Section>& sections);

// The metric over all runs of a group, in the units of its heading.
Spread final_of(const Section& section, const Group& group);

}  // namespace pride::app
