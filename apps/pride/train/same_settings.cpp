// SPDX-License-Identifier: Apache-2.0
#include "train/same_settings.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "pride/error.h"
#include "pride/random_bits.h"

namespace pride::app {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;  // name, value as text

Settings settings_of(const TrainPlan& plan) {
  Settings settings;
  const nlohmann::ordered_json flags = to_json(plan.options);
  for (const auto& [key, value] : flags.items()) {
    // the same data may lie elsewhere on another machine; its hash counts
    if (key != "data" && key != "vocab" && key != "init" && key != "loader-threads")
      settings.emplace_back("--" + key, value.dump());
  }
  const std::string out = plan.options.save_every > 0 ? plan.options.out : "";
  settings.emplace_back("--out", out);
  settings.emplace_back("the data (--data)", plan.task->data_facts().at("hash").dump());
  settings.emplace_back("the model (--init)", plan.task->model_size().dump());
  settings.emplace_back("the number of steps", std::to_string(plan.steps));
  return settings;
}

std::uint64_t digest(const std::string& text) {
  std::uint64_t hash = text.size();
  for (const char c : text) hash = mix64(hash, static_cast<unsigned char>(c));
  return hash;
}

// "1, 3": the ranks whose entry k differs from rank 0's; empty if none
std::string ranks_that_differ(const std::vector<std::uint64_t>& all, std::size_t width,
                              std::size_t k) {
  std::string ranks;
  for (std::size_t r = 1; r * width < all.size(); ++r) {
    if (all[r * width + k] != all[k]) ranks += concat(ranks.empty() ? "" : ", ", r);
  }
  return ranks;
}

}  // namespace

void check_same_settings(Communicator& comm, const TrainPlan& plan) {
  const Settings settings = settings_of(plan);
  std::vector<std::uint64_t> mine;
  for (const auto& [name, value] : settings) mine.push_back(digest(value));
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(comm.size()));
  const Communicator::Scope scope(comm, "start-up check of the settings");
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::string ranks = ranks_that_differ(all, mine.size(), k);
    PRIDE_CHECK(ranks.empty(), settings[k].first, " differs: rank(s) ", ranks,
                " have another value than rank 0 (here ", settings[k].second,
                "); all ranks of a job need the same settings");
  }
}

}  // namespace pride::app
