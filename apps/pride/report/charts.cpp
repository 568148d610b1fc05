// SPDX-License-Identifier: Apache-2.0
#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "pride/error.h"

namespace pride::app {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Series, name, color, x, y, spread)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ChartAxis, label, log2, min, max, ticks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Chart, id, title, note, points, x, y, series)

namespace {

using Json = nlohmann::json;

constexpr double kFarOut = 3;  // times the range of nearly all values: such peaks are cut

std::vector<std::string> facets_of(const Section& section) {
  std::vector<std::string> facets;
  for (const Group& group : section.groups) {
    const bool known = std::find(facets.begin(), facets.end(), group.facet) != facets.end();
    if (!known && !group.runs.empty()) facets.push_back(group.facet);
  }
  return facets;
}

// Some room around what is drawn; true if peaks were cut off.
bool fit_y(Chart& chart) {
  std::vector<double> all;
  for (const Series& s : chart.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      all.insert(all.end(), {s.y[i], s.y[i] - s.spread[i], s.y[i] + s.spread[i]});
    }
  }
  if (all.empty()) return false;
  std::sort(all.begin(), all.end());
  const double low = all.front(), most = all[(all.size() - 1) * 97 / 100];
  const bool cut = all.back() - low > kFarOut * (most - low) && most > low;
  const double high = cut ? low + 1.5 * (most - low) : all.back();
  const double room = high > low ? 0.06 * (high - low) : std::max(std::abs(high) * 0.05, 1e-3);
  chart.y.min = low >= 0 ? std::max(0.0, low - room) : low - room;
  chart.y.max = high + room;
  return cut;
}

void fit_x(Chart& chart) {
  std::set<double> values;
  for (const Series& s : chart.series) values.insert(s.x.begin(), s.x.end());
  if (values.empty()) return;
  const double low = *values.begin(), high = *values.rbegin();
  if (!chart.x.log2) {
    chart.x.min = 0;
    chart.x.max = high > 0 ? high : 1;
    return;
  }
  const double room = std::pow(2, std::max(0.08 * std::log2(high / low), 0.15));
  chart.x.min = low / room;
  chart.x.max = high * room;
  if (!chart.points) {
    chart.x.ticks.assign(values.begin(), values.end());
    return;
  }
  for (int k = -20; k <= 20; ++k) {
    const double tick = std::ldexp(1.0, k);
    if (tick >= chart.x.min && tick <= chart.x.max) chart.x.ticks.push_back(tick);
  }
}

void finish(std::vector<Chart>& charts, Chart chart) {
  std::erase_if(chart.series, [](const Series& s) { return s.x.empty(); });
  if (chart.series.empty()) return;
  fit_x(chart);
  if (fit_y(chart)) chart.note += " Peaks above the frame are cut.";
  charts.push_back(std::move(chart));
}

// Values that are not finite are no points.
void append(Series& series, double x, const Spread& spread) {
  if (!std::isfinite(spread.mean + spread.deviation)) return;
  series.x.push_back(x);
  series.y.push_back(spread.mean);
  series.spread.push_back(spread.deviation);
}

// Mean curve of a group: at each step that all of its runs have.
Series mean_curve(const Group& group, const std::function<const Curve*(const RunData&)>& curve,
                  double factor) {
  Series series{.name = group.label, .color = group.color};
  std::map<double, std::vector<double>> at;
  for (const RunData* run : group.runs) {
    const Curve* values = curve(*run);
    if (values == nullptr) continue;
    for (const auto& [step, value] : *values) at[step].push_back(value * factor);
  }
  for (const auto& [step, values] : at) {
    if (values.size() < group.runs.size()) continue;
    append(series, step / group.runs.front()->steps_per_epoch(), spread_of(values));
  }
  return series;
}

std::string of_facet(const std::string& what, const std::string& facet) {
  return facet.empty() ? what : concat(what, ", ", facet);
}

// so that two charts of a page differ: "epoch", "epoch-workers-16"
std::string chart_id(const std::string& what, const std::string& facet) {
  std::string id = of_facet(what, facet);
  std::string plain;
  for (const char c : id) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) || c == '.';
    if (keep) plain += c;
    if (!keep && !plain.empty() && plain.back() != '-') plain += '-';
  }
  return plain;
}

// Facets that differ in signs alone, as "a_1" and "a-1", have one id: it is numbered.
void number_equal_ids(std::vector<Chart>& charts) {
  std::set<std::string> seen;
  for (Chart& chart : charts) {
    const std::string id = chart.id;
    for (int n = 2; !seen.insert(chart.id).second; ++n) chart.id = concat(id, "-", n);
  }
}

std::string capital(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// Names within one chart: two groups of a label and facet differ in the method's own settings.
std::string name_in_facet(const Section& section, const Group& group) {
  const auto same = [&](const Group& g) {
    return g.label == group.label && g.facet == group.facet;
  };
  return std::count_if(section.groups.begin(), section.groups.end(), same) > 1 ? group.name
                                                                               : group.label;
}

void add_epochs(const Section& section, const std::string& facet, std::vector<Chart>& charts) {
  const std::string& key = section.metric.key;
  Chart result{.id = chart_id("epoch", facet),
               .title = of_facet(capital(section.metric.name), facet),
               .note = "Mean over the seeds; the band is one standard deviation to each side.",
               .x = {.label = "epochs"},
               .y = {.label = section.metric.heading},
               .series = {}};
  Chart loss{
      .id = chart_id("loss", facet),
      .title = of_facet("Training loss", facet),
      .note = "Of the steps' own batches, averaged over stretches of a hundredth of the run.",
      .x = {.label = "epochs"},
      .y = {.label = "training loss, nats"},
      .series = {}};
  for (const Group& group : section.groups) {
    if (group.facet != facet || group.runs.empty()) continue;
    Series curve = mean_curve(
        group,
        [&](const RunData& run) {
          const auto found = run.evaluations.find(key);
          return found != run.evaluations.end() ? &found->second : nullptr;
        },
        section.metric.factor);
    curve.name = name_in_facet(section, group);
    if (curve.x.size() > 1) result.series.push_back(curve);  // one point is no curve
    Series steps = mean_curve(
        group, [](const RunData& run) { return &run.train_loss; }, 1);
    steps.name = curve.name;
    loss.series.push_back(steps);
  }
  finish(charts, std::move(result));
  finish(charts, std::move(loss));
}

// Runs of an older version may lack a flag.
std::string setting(const Group& group, const std::string& flag) {
  const auto found = group.settings.find(flag);
  return found != group.settings.end() ? found->second : "default";
}

using Groups = std::vector<const Group*>;

// Flags in which groups differ that have the same value of `flag`.
std::set<std::string> differing_at_one_value(const Groups& groups, const std::string& flag) {
  std::set<std::string> flags;
  for (const Group* a : groups) {
    for (const Group* b : groups) {
      if (setting(*a, flag) != setting(*b, flag)) continue;
      for (const auto& [other, value] : a->settings) {
        if (setting(*b, other) != value) flags.insert(other);
      }
    }
  }
  return flags;
}

// One line a label and value of the other varied flags, over the values of `flag`; what belongs to
// a method (rates chosen for each value of `flag`) makes lines only where there would be two points
// at one place.
void add_against(const Section& section, const std::string& flag, const std::string& label,
                 std::vector<Chart>& charts) {
  if (std::find(section.varied.begin(), section.varied.end(), flag) == section.varied.end()) return;
  Chart chart{.id = chart_id(flag, ""),
              .title = concat(capital(section.metric.name), " against ", label),
              .note = "At the end of the runs: mean and standard deviation over the seeds.",
              .x = {.label = label, .log2 = true},
              .y = {.label = section.metric.heading},
              .series = {}};
  std::map<std::string, Groups> alike;
  for (const Group& group : section.groups) {
    if (group.runs.empty()) continue;
    std::string name = group.label;
    for (const std::string& other : section.varied) {
      const bool depends = other == flag || other == "steps" || other == "epochs";
      if (!depends) name += concat(", ", other, " ", setting(group, other));
    }
    alike[name].push_back(&group);
  }
  std::map<std::string, std::map<double, const Group*>> lines;
  for (const auto& [name, groups] : alike) {
    const auto differing = differing_at_one_value(groups, flag);
    for (const Group* group : groups) {
      std::string whole = name;
      for (const std::string& own : differing)
        whole += concat(", ", own, " ", setting(*group, own));
      lines[whole][std::strtod(setting(*group, flag).c_str(), nullptr)] = group;
    }
  }
  for (const auto& [name, points] : lines) {
    Series series{.name = name, .color = points.begin()->second->color};
    for (const auto& [x, group] : points) {
      if (x > 0) append(series, x, final_of(section, *group));
    }
    chart.series.push_back(std::move(series));
  }
  std::stable_sort(chart.series.begin(), chart.series.end(),
                   [](const Series& a, const Series& b) { return a.color < b.color; });
  finish(charts, std::move(chart));
}

void add_bits(const Section& section, const std::string& facet, std::vector<Chart>& charts) {
  Chart chart{.id = chart_id("bits", facet),
              .title = of_facet(concat(capital(section.metric.name), " against bits sent"), facet),
              .note =
                  "Counted bytes of the rank that sends most, frames included; the bars are one "
                  "standard deviation over the seeds.",
              .points = true,
              .x = {.label = "bits sent per parameter and step", .log2 = true},
              .y = {.label = section.metric.heading},
              .series = {}};
  for (const Group& group : section.groups) {
    if (group.facet != facet || group.runs.empty() || !(group.bits() > 0)) continue;
    Series series{.name = name_in_facet(section, group), .color = group.color};
    append(series, group.bits(), final_of(section, group));
    chart.series.push_back(std::move(series));
  }
  finish(charts, std::move(chart));
}

// Eight digits: less than a hundredth of a pixel.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.8g", value);
  return std::strtod(text, nullptr);
}

void check_axis(const ChartAxis& axis) {
  if (!(axis.min < axis.max)) throw DataError(concat("axis '", axis.label, "': min >= max"));
  if (axis.log2 && !(axis.min > 0)) throw DataError(concat("axis '", axis.label, "': min <= 0"));
}

}  // namespace

std::vector<Chart> charts_of(const Section& section) {
  std::vector<Chart> charts;
  for (const std::string& facet : facets_of(section)) add_epochs(section, facet, charts);
  // curves of the result first, those of the training loss after them
  std::stable_partition(charts.begin(), charts.end(),
                        [](const Chart& chart) { return chart.id.starts_with("epoch"); });
  add_against(section, "workers", "workers", charts);
  add_against(section, "batch", "batch per worker, samples", charts);
  for (const std::string& facet : facets_of(section)) add_bits(section, facet, charts);
  number_equal_ids(charts);
  return charts;
}

Chart chart_named(const std::vector<Section>& sections, const std::string& id) {
  std::string known;
  std::optional<Chart> plain;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    for (Chart& chart : charts_of(sections[i])) {
      const std::string full = concat("s", i + 1, "-", chart.id);
      if (id == full) return chart;
      known += concat(known.empty() ? "" : ", ", sections.size() > 1 ? full : chart.id);
      if (!plain && (id.empty() || id == chart.id)) plain = std::move(chart);
    }
  }
  PRIDE_CHECK(!known.empty(), "--svg: these runs make no chart");
  PRIDE_CHECK(plain.has_value(), "--chart ", id, ": there are ", known);
  return *plain;
}

std::string json_of(const Chart& chart) {
  Json head = chart;
  head.erase("series");
  for (const char* axis : {"x", "y"}) {
    for (const char* bound : {"min", "max"}) head[axis][bound] = rounded(head[axis][bound]);
  }
  std::string text = head.dump();
  text.back() = ',';
  text += "\"series\":[";
  for (Series s : chart.series) {
    for (std::vector<double>* values : {&s.x, &s.y, &s.spread}) {
      std::ranges::transform(*values, values->begin(), rounded);
    }
    text += concat(text.back() == '[' ? "\n" : ",\n", Json(s).dump());
  }
  return text + "\n]}\n";
}

Chart chart_of(const std::string& json) {
  Chart chart;
  try {
    chart = Json::parse(json).get<Chart>();
  } catch (const Json::exception& error) {
    throw DataError(concat("not the numbers of a chart: ", error.what()));
  }
  check_axis(chart.x);
  check_axis(chart.y);
  if (chart.series.empty()) throw DataError("no series");
  for (const Series& s : chart.series) {
    const bool good = !s.x.empty() && s.x.size() == s.y.size() && s.color >= 0 &&
                      (s.spread.empty() || s.spread.size() == s.x.size());
    if (!good) throw DataError(concat("series '", s.name, "': x, y and spread differ in length"));
  }
  return chart;
}

}  // namespace pride::app
