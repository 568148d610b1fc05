// The one table of settings: their names, members of TrainOptions, limits, help and roles. It is
// the source of the command line, --config, settings as JSON, the agreement of ranks and the
// identity of a run in an experiment.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pride/train/options.h"

namespace pride::train {

// What a setting determines.
enum class Role {
  kData,      // paths of data: they may differ between ranks, but not their hash
  kTask,      // the samples and the model
  kBatches,   // which samples a run uses, and how many
  kMethod,    // the method and its hyper-parameters
  kTraining,  // other settings that change parameters, bytes or time
  kSpeed,     // time alone
  kRecords,   // evaluation, saving, and where a run starts
  kOutput,    // where results go and what is printed; not part of the run
};

struct Flag {
  using O = TrainOptions;
  using Member = std::variant<std::string O::*, std::vector<std::string> O::*, bool O::*,
                              std::optional<bool> O::*, int O::*, std::int64_t O::*,
                              std::uint64_t O::*, double O::*, std::optional<int> O::*,
                              std::optional<std::int64_t> O::*, std::optional<double> O::*>;

  std::string name;  // without dashes
  Member member;
  Role role;
  std::string group;  // of the help
  std::string help;   // empty if it lists registered names: help_of()

  struct Rules {
    // For numbers; `above`, `below`: the limit itself is excluded.
    double lowest = 0, highest = std::numeric_limits<double>::infinity();
    bool above = false, below = false;
    std::vector<std::string> choices = {};               // for texts; empty: any
    std::string (*wrong)(const std::string&) = nullptr;  // why a text is refused; empty: it is not
    std::string type = {};       // type of the value in the help; empty: its own
    std::string rival = {};      // flag that this one excludes
    std::string needs = {};      // flag that must be given with it
    bool may_differ = false;     // may differ between the ranks of a job
    bool by_experiment = false;  // set by sweep and compare for each run
  };
  Rules rules = {};

  static const std::vector<Flag>& table();
  // Null if no flag has this name.
  static const Flag* find(std::string_view name);

  // True if the value is not the default.
  bool given(const TrainOptions& options) const;
};

// Of the flag of that name; kTraining for one that this version does not know.
Role role_of(std::string_view name);

// The flag's help, with the registered tasks and models if it lists them.
std::string help_of(const Flag& flag);

}  // namespace pride::train
