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

using Groups = std::vector<const Group*>;  // of which each has a run

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

// Values that are not finite are no points.
void append(Series& series, double x, const Spread& spread) {
  if (!std::isfinite(spread.mean + spread.deviation)) return;
  series.x.push_back(x);
  series.y.push_back(spread.mean);
  series.spread.push_back(spread.deviation);
}

// Groups of one label differ in the method's own settings, which their names have.
Series series_of(const Groups& groups, const Group& group) {
  const auto n = std::ranges::count(groups, group.label, &Group::label);
  return {.name = n > 1 ? group.name : group.label, .color = group.color};
}

// Mean curve of a group: at each step that all of its runs have.
Series mean_curve(const Groups& groups, const Group& group,
                  const std::function<Curve(const RunData&)>& curve) {
  Series series = series_of(groups, group);
  std::map<double, std::vector<double>> at;
  for (const RunData* run : group.runs) {
    for (const auto& [step, value] : curve(*run)) at[step].push_back(value);
  }
  for (const auto& [step, values] : at) {
    if (values.size() < group.runs.size()) continue;
    append(series, step / group.runs.front()->steps_per_epoch(), spread_of(values));
  }
  return series;
}

Chart result_curves(const Section& section, const Groups& groups) {
  const Metric& metric = section.metric;
  Chart chart{.title = metric.name,
              .note = "Mean over the seeds; the band is one standard deviation to each side.",
              .x = {.label = "epochs"},
              .y = {.label = metric.heading}};
  for (const Group* group : groups) {
    Series series = mean_curve(groups, *group, [&](const RunData& run) {
      const auto found = run.evaluations.find(metric.key);
      Curve curve = found != run.evaluations.end() ? found->second : Curve();
      for (auto& [step, value] : curve) value *= metric.factor;
      return curve;
    });
    if (series.x.size() > 1) chart.series.push_back(std::move(series));  // one point is no curve
  }
  return chart;
}

Chart loss_curves(const Section&, const Groups& groups) {
  Chart chart{
      .title = "training loss",
      .note = "Of the steps' own batches, averaged over stretches of a hundredth of the run.",
      .x = {.label = "epochs"},
      .y = {.label = "training loss, nats"}};
  for (const Group* group : groups) {
    chart.series.push_back(
        mean_curve(groups, *group, [](const RunData& run) { return run.train_loss; }));
  }
  return chart;
}

// Flags in which groups differ that have the same value of `flag`.
std::set<std::string> differing_at_one_value(const Groups& groups, const std::string& flag) {
  std::set<std::string> flags;
  for (const Group* a : groups) {
    for (const Group* b : groups) {
      if (a->setting(flag) != b->setting(flag)) continue;
      for (const auto& [other, value] : a->settings) {
        if (b->setting(other) != value) flags.insert(other);
      }
    }
  }
  return flags;
}

// One line a label and value of the other varied flags, over the values of `flag`; what belongs to
// a method (rates chosen for each value of `flag`) makes lines only where there would be two points
// at one place.
Chart against(const Section& section, const Groups& groups, const std::string& flag,
              const std::string& label) {
  Chart chart{.title = concat(section.metric.name, " against ", label),
              .note = "At the end of the runs: mean and standard deviation over the seeds.",
              .x = {.label = label, .log2 = true},
              .y = {.label = section.metric.heading}};
  if (std::ranges::find(section.varied, flag) == section.varied.end()) return chart;
  std::map<std::string, Groups> alike;
  for (const Group* group : groups) {
    std::string name = group->label;
    for (const std::string& other : section.varied) {
      const bool depends = other == flag || other == "steps" || other == "epochs";
      if (!depends) name += concat(", ", other, " ", group->setting(other));
    }
    alike[name].push_back(group);
  }
  std::map<std::string, std::map<double, const Group*>> lines;
  for (const auto& [name, members] : alike) {
    const auto differing = differing_at_one_value(members, flag);
    for (const Group* group : members) {
      std::string whole = name;
      for (const std::string& own : differing) whole += concat(", ", own, " ", group->setting(own));
      lines[whole][std::strtod(group->setting(flag).c_str(), nullptr)] = group;
    }
  }
  for (const auto& [name, points] : lines) {
    Series series{.name = name, .color = points.begin()->second->color};
    for (const auto& [x, group] : points) {
      if (x > 0) append(series, x, final_of(section, *group));
    }
    chart.series.push_back(std::move(series));
  }
  std::ranges::stable_sort(chart.series, {}, &Series::color);
  return chart;
}

Chart against_workers(const Section& section, const Groups& groups) {
  return against(section, groups, "workers", "workers");
}

Chart against_batch(const Section& section, const Groups& groups) {
  return against(section, groups, "batch", "batch per worker, samples");
}

Chart against_bits(const Section& section, const Groups& groups) {
  Chart chart{.title = concat(section.metric.name, " against bits sent"),
              .note =
                  "Counted bytes of the rank that sends most, frames included; the bars are one "
                  "standard deviation over the seeds.",
              .points = true,
              .x = {.label = "bits sent per parameter and step", .log2 = true},
              .y = {.label = section.metric.heading}};
  for (const Group* group : groups) {
    Series series = series_of(groups, *group);
    if (group->bits() > 0) append(series, group->bits(), final_of(section, *group));
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// All charts of a section, in the order of the page. A chart of each facet shows groups that differ
// in the method alone.
struct Entry {
  const char* id;
  bool each_facet;
  Chart (*make)(const Section&, const Groups&);
};
constexpr Entry kCharts[] = {{"epoch", true, result_curves},
                             {"loss", true, loss_curves},
                             {"workers", false, against_workers},
                             {"batch", false, against_batch},
                             {"bits", true, against_bits}};

// "epoch-workers-16"
std::string plain_id(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    const bool keep = std::isalnum(static_cast<unsigned char>(c)) || c == '.';
    if (keep) plain += c;
    if (!keep && !plain.empty() && plain.back() != '-') plain += '-';
  }
  return plain;
}

Chart chart_of(const Entry& entry, const Section& section, Groups groups,
               const std::string& facet) {
  Chart chart = entry.make(section, groups);
  const std::string of_facet = facet.empty() ? "" : concat(", ", facet);
  chart.id = plain_id(entry.id + of_facet);
  chart.title += of_facet;
  chart.title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(chart.title[0])));
  std::erase_if(chart.series, [](const Series& s) { return s.x.empty(); });
  fit_x(chart);
  if (fit_y(chart)) chart.note += " Peaks above the frame are cut.";
  return chart;
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
  std::vector<std::pair<std::string, Groups>> facets;
  Groups all;
  for (const Group& group : section.groups) {
    if (group.runs.empty()) continue;
    all.push_back(&group);
    const auto known = std::ranges::find(facets, group.facet, &decltype(facets)::value_type::first);
    if (known != facets.end()) {
      known->second.push_back(&group);
    } else {
      facets.push_back({group.facet, {&group}});
    }
  }
  const auto whole = decltype(facets){{"", all}};
  std::vector<Chart> charts;
  std::set<std::string> ids;
  for (const Entry& entry : kCharts) {
    for (const auto& [facet, groups] : entry.each_facet ? facets : whole) {
      Chart chart = chart_of(entry, section, groups, facet);
      if (chart.series.empty()) continue;
      // facets that differ in signs alone, as "a_1" and "a-1", have one id: it is numbered
      const std::string id = chart.id;
      for (int n = 2; !ids.insert(chart.id).second; ++n) chart.id = concat(id, "-", n);
      charts.push_back(std::move(chart));
    }
  }
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
