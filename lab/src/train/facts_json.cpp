// SPDX-License-Identifier: Apache-2.0
#include "train/facts_json.h"

#include <optional>

#include "pride/train/flags.h"

namespace pride::train {
namespace {

template <typename T>
nlohmann::ordered_json value_json(const T& value) {
  return value;
}

template <typename T>
nlohmann::ordered_json value_json(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// a switch that is not given is off, unless the job turns it on
nlohmann::ordered_json value_json(const std::optional<bool>& value) {
  return value.value_or(false);
}

}  // namespace

nlohmann::ordered_json to_json(const Facts& facts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : facts) {
    std::visit([&, key = name](const auto& v) { json[key] = v; }, value);
  }
  return json;
}

nlohmann::ordered_json to_json(const TrainOptions& options) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Flag& flag : Flag::table()) {
    if (flag.role == Role::kOutput) continue;
    json[flag.name] =
        std::visit([&](auto member) { return value_json(options.*member); }, flag.member);
  }
  return json;
}

}  // namespace pride::train
