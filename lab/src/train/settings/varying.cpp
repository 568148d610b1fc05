// SPDX-License-Identifier: Apache-2.0
#include "train/settings/varying.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <utility>

#include "pride/error.h"
#include "train/settings/groups.h"

namespace pride::train {
namespace {

constexpr std::pair<const char*, std::optional<double> ParamGroup::*> kNames[] = {
    {"beta1", &ParamGroup::beta1},
    {"beta2", &ParamGroup::beta2},
    {"momentum", &ParamGroup::momentum},
    {"weight-decay", &ParamGroup::weight_decay}};

constexpr const char* kForm = ": must be 'NAME=VALUE@STEP,VALUE@STEP,... [cosine]'";

// "0.97@300" or "0.9@100%"
Varying::Point parse_point(const std::string& where, const std::string& text) {
  const std::size_t at = std::min(text.find('@'), text.size());
  std::string step = at == text.size() ? "" : text.substr(at + 1);
  Varying::Point point{.is_share = step.ends_with('%')};
  if (point.is_share) step.pop_back();
  const auto value = finite_number(text.substr(0, at)), place = finite_number(step);
  PRIDE_CHECK(value && *value >= 0, where, ": '", text, "': VALUE must be a number, 0 or more");
  PRIDE_CHECK(
      place && *place >= 0 && (point.is_share ? *place <= 100 : *place == std::floor(*place)),
      where, ": '", text, "': STEP must be a whole number, or a share of the run up to 100%");
  point.value = *value;
  point.at = point.is_share ? *place / 100 : *place;
  return point;
}

double place_of(const Varying::Point& point, std::int64_t steps) {
  return point.is_share ? point.at * static_cast<double>(steps) : point.at;
}

Varying parse_entry(const std::string& entry) {
  const std::string where = concat("'", entry, "'");
  std::istringstream words(entry);
  std::string setting, shape, more;
  words >> setting >> shape >> more;
  const std::size_t equals = std::min(setting.find('='), setting.size());
  const auto points = parts_of(setting.substr(std::min(equals + 1, setting.size())), ',');
  PRIDE_CHECK(!points.empty() && more.empty() && (shape.empty() || shape == "cosine"), where,
              kForm);
  Varying varying{.name = setting.substr(0, equals), .cosine = !shape.empty()};
  std::string known;
  for (const auto& [name, member] : kNames) {
    if (varying.name == name) varying.member = member;
    known += concat(known.empty() ? "" : ", ", name);
  }
  PRIDE_CHECK(varying.member != nullptr, where, ": no name '", varying.name, "'; names are ",
              known);
  for (const std::string& point : points) varying.points.push_back(parse_point(where, point));
  return varying;
}

}  // namespace

void Varying::check(std::int64_t steps) const {
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double begin = place_of(points[i - 1], steps), end = place_of(points[i], steps);
    PRIDE_CHECK(begin < end, "--vary: ", name, ": its points must ascend; in a run of ", steps,
                " steps one is at step ", begin, " and the next at ", end);
  }
}

double Varying::at(std::int64_t step, std::int64_t steps) const {
  const auto t = static_cast<double>(step);
  double value = points.front().value;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double begin = place_of(points[i - 1], steps), end = place_of(points[i], steps);
    if (t <= begin) break;
    double share = std::min(1.0, (t - begin) / (end - begin));
    if (cosine) share = (1 - std::cos(std::numbers::pi * share)) / 2;
    value = points[i - 1].value + share * (points[i].value - points[i - 1].value);
  }
  return value;
}

std::vector<Varying> parse_varying(const std::string& text) {
  std::vector<Varying> all;
  for (const std::string& entry : parts_of(text, ';')) {
    all.push_back(parse_entry(entry));
    PRIDE_CHECK(std::ranges::count(all, all.back().name, &Varying::name) == 1, "'", entry,
                "': ", all.back().name, " is given twice");
  }
  PRIDE_CHECK(text.empty() || !all.empty(), "'", text, "': no entry", kForm);
  return all;
}

}  // namespace pride::train
