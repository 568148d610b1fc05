// Runs as `pride train` and `pride sweep` write them, for tests of the report.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "pride/error.h"
#include "report/page.h"
#include "support/temp_folder.h"
#include "train_names.h"

namespace pride::app {

using nlohmann::json;
using testing::IsNotSubstring;
using testing::IsSubstring;

inline constexpr int kSteps = 250;
inline constexpr double kTolerance = 1e-12;  // sums in double

class Report : public testing::Test {
 protected:
  // Loss of step s is 3 - s / 250; accuracy is evaluated after steps 125 and 250. `other`: what the
  // summary has besides, or instead.
  void write_run(const std::string& folder, const std::string& method, int workers, int seed,
                 double accuracy, double bytes, const json& other = json::object()) const {
    std::string lines;
    for (int s = 1; s <= kSteps; ++s) {
      lines += json({{"type", "step"},
                     {"step", s},
                     {"loss", 3 - s / 250.0},
                     {"lr", 0.5},
                     {"grad_norm", s},
                     {"bytes_sent", bytes}})
                   .dump() +
               "\n";
      if (s % 125 != 0) continue;
      lines +=
          json({{"type", "eval"}, {"step", s}, {"accuracy", accuracy * s / kSteps}}).dump() + "\n";
    }
    folder_.write(folder + "/metrics.jsonl", lines + R"({"type":"step","st)");
    json summary = {
        {"settings", {{"method", method}, {"workers", workers}, {"seed", seed}, {"lr", nullptr}}},
        {"task", "cifar10"},
        {"data", {{"hash", "1"}, {"source", "x"}}},
        {"model", {{"name", "vit"}, {"parameters", 400}}},
        {"method", {{"name", method}, {"lr", 0.5}}},
        {"world", workers},
        {"steps", kSteps},
        {"steps_run", kSteps},
        {"epochs", 2.5},
        {"bytes", json::object()},
        {"seconds", {{"backward_s", 1.0}}},
        {"step_ms", 8.0},
        {"final", {{"loss", 2.0}, {"accuracy", accuracy}}}};
    summary.update(other, /*merge_objects=*/true);
    folder_.write(folder + "/summary.json", summary.dump());
  }

  // Records of runs that have the label "mine".
  void write_sweep(const std::string& folder, const json& overview,
                   const std::vector<json>& records) const {
    folder_.write(folder + "/sweep.json", overview.dump());
    std::string lines;
    for (json record : records) {
      record.update({{"label", "mine"}, {"phase", "run"}, {"command", "pride train"}});
      lines += record.dump() + "\n";
    }
    folder_.write(folder + "/sweep.jsonl", lines);
  }

  // A value of the summary; discarded: none.
  void set(const std::string& folder, const char* place, const json& value) const {
    const std::string file = folder + "/summary.json";
    json summary = json::parse(test::bytes_of(folder_.path() / file));
    const json::json_pointer at(place);
    if (value.is_discarded()) {
      summary[at.parent_pointer()].erase(at.back());
    } else {
      summary[at] = value;
    }
    folder_.write(file, summary.dump());
  }

  std::string error_of(const std::string& folder) {
    load_runs(folder_.path() / folder, loaded_);
    return loaded_.runs.back().error;
  }

  std::vector<Section> sections(const std::vector<std::string>& folders) {
    for (const std::string& folder : folders) load_runs(folder_.path() / folder, loaded_);
    return sections_of(loaded_);
  }

  std::string page(const std::vector<Section>& sections) const {
    return page_of({.title = "t", .program = "p"}, loaded_, sections);
  }

  const Chart& chart(const std::vector<Chart>& charts, const std::string& id) const {
    for (const Chart& one : charts) {
      if (one.id == id) return one;
    }
    throw std::runtime_error("no chart " + id);
  }

  test::TempFolder folder_;
  Loaded loaded_;
};

}  // namespace pride::app
