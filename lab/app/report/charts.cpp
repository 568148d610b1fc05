// SPDX-License-Identifier: Apache-2.0
#include "report/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "pride/error.h"
#include "program/units.h"

namespace pride::app {

namespace {

constexpr double kFarOut = 3;           // peaks above 3 times the range of 97 % of values are cut
constexpr std::size_t kMostTicks = 12;  // up to this many values get a tick each; else powers of 2

using Groups = std::vector<const Group*>;  // each has at least one run

// Sets the range of y, with a margin; true if peaks are cut off.
bool fit_y(Chart& chart) {
  std::vector<double> all;
  for (const Series& s : chart.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      all.insert(all.end(), {s.y[i], s.y[i] - s.spread[i], s.y[i] + s.spread[i]});
    }
  }
  if (all.empty()) return false;
  if (chart.y.log2) std::erase_if(all, [](double value) { return value <= 0; });
  std::sort(all.begin(), all.end());
  const double low = all.front(), most = all[(all.size() - 1) * 97 / 100];
  if (chart.y.log2) {
    const double room = is_narrow(low, all.back()) ? 1.5 : std::pow(all.back() / low, 0.06);
    chart.y.min = low / room;
    chart.y.max = all.back() * room;
    return false;
  }
  const bool cut = all.back() - low > kFarOut * (most - low) && !is_narrow(low, most);
  const double high = cut ? low + 1.5 * (most - low) : all.back();
  const double room =
      is_narrow(low, high) ? std::max(std::abs(high) * 0.05, 1e-3) : 0.06 * (high - low);
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
  if (!chart.points && values.size() <= kMostTicks) {
    chart.x.ticks.assign(values.begin(), values.end());
    return;
  }
  for (int k = -20; k <= 20; ++k) {
    const double tick = std::ldexp(1.0, k);
    if (tick >= chart.x.min && tick <= chart.x.max) chart.x.ticks.push_back(tick);
  }
}

// Adds a point, unless its value is not finite.
void append(Series& series, double x, const Spread& spread) {
  if (!std::isfinite(spread.mean + spread.deviation)) return;
  series.x.push_back(x);
  series.y.push_back(spread.mean);
  const double low = spread.mean - spread.deviation, high = spread.mean + spread.deviation;
  series.spread.push_back(is_narrow(low, high) ? 0 : spread.deviation);  // rounding
}

// Named by the label; if several groups have it, by the group's name, which has their differences.
Series series_of(const Groups& groups, const Group& group) {
  const auto n = std::ranges::count(groups, group.label, &Group::label);
  return {.name = n > 1 ? group.name : group.label, .color = group.color};
}

// The x of a curve: a run's position after `step` steps.
struct CurveAxis {
  const char* name;
  const char* key;  // of the lines of --metrics
  const char* label;
  double (*at)(const RunData&, double step, const Look&);
};

// Seconds after n steps, without overlap of exchange and backward.
double seconds_at(const RunData& run, double n, const Look& look) {
  if (look.link.empty()) return n * run.step_ms() / 1e3;
  return n * run.compute_ms() / 1e3 + run.sent_until(n) / parse_rate(look.link);
}

constexpr CurveAxis kCurveAxes[] = {
    {"epoch", "epoch", "epochs",
     [](const RunData& run, double n, const Look&) { return n / run.steps_per_epoch(); }},
    {"step", "step", "steps", [](const RunData&, double n, const Look&) { return n; }},
    {"time", "seconds", "seconds, at the run's mean step", seconds_at},
    {"bytes", "bytes_sent", "MB sent, of the rank that sends most",
     [](const RunData& run, double n, const Look&) { return run.sent_until(n) / 1e6; }}};

const CurveAxis& curve_axis(const std::string& name) {
  const auto found =
      std::ranges::find_if(kCurveAxes, [&](const CurveAxis& axis) { return name == axis.name; });
  PRIDE_CHECK(found != std::end(kCurveAxes), "--x ", name, ": must be epoch, step, time or bytes");
  return *found;
}

// Adds the mean curve of each group, at the steps that all its runs have. A curve needs two points.
template <typename Curve>
void add_curves(const Groups& groups, const Look& look, const Curve& curve, Chart& chart) {
  const CurveAxis& axis = curve_axis(look.x);
  chart.x.label = axis.label;
  if (!look.link.empty()) {
    chart.x.label = concat("seconds: compute as measured, then bytes over ", look.link);
    chart.x.log2 = true;
  }
  for (const Group* group : groups) {
    std::map<double, std::pair<std::vector<double>, std::vector<double>>> at;  // x, y by step
    for (const RunData* run : group->runs) {
      for (const auto& [step, value] : curve(*run)) {
        const double x = axis.at(*run, step, look);
        PRIDE_CHECK(std::isfinite(x), "--x ", axis.name, ": ", run->folder, " has no '", axis.key,
                    "'; use another axis, or leave the run out");
        at[step].first.push_back(x);
        at[step].second.push_back(value);
      }
    }
    Series series = series_of(groups, *group);
    for (const auto& [step, values] : at) {
      if (values.first.size() < group->runs.size()) continue;
      append(series, spread_of(values.first).mean, spread_of(values.second));
    }
    if (series.x.size() > 1) chart.series.push_back(std::move(series));
  }
}

Curve curve_of(const std::map<std::string, Curve>& curves, const std::string& key) {
  const auto found = curves.find(key);
  return found != curves.end() ? found->second : Curve();
}

// A chart of the page; with each_facet, one per facet, whose groups differ only in the method.
struct Entry {
  const char* id;
  bool each_facet;
  Chart (*make)(const Section&, const Groups&, const Look&, const Entry&);
  const char* key = "";  // key of RunData::steps, or the flag along x
  const char *title = "", *label = "";
};

Chart result_curves(const Section& section, const Groups& groups, const Look& look, const Entry&) {
  const Metric& metric = section.metric;
  Chart chart{.title = metric.name, .x = {}, .y = {.label = metric.heading}};
  const auto curve = [&](const RunData& run) {
    Curve found = curve_of(run.evaluations, metric.key);
    for (auto& [step, value] : found) value *= metric.factor;
    return found;
  };
  add_curves(groups, look, curve, chart);
  return chart;
}

// Curves of values of the steps, such as the training loss.
Chart step_curves(const Section& section, const Groups& groups, const Look& look,
                  const Entry& entry) {
  Chart chart{.title = entry.title,
              .note = section.of_files
                          ? "A point is a line of the file, or the mean of a hundredth of them."
                          : "Averaged over stretches of a hundredth of the run.",
              .x = {},
              .y = {.label = section.of_files ? entry.title : entry.label}};
  add_curves(
      groups, look, [&](const RunData& run) { return curve_of(run.steps, entry.key); }, chart);
  return chart;
}

// Flags in which groups with the same value of `flag` differ.
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

// One line per label and value of the other varied flags, over the values of `flag`. Flags of the
// method (rates chosen for each value of `flag`) make separate lines only if two points would
// coincide.
Chart against(const Section& section, const Groups& groups, const Look&, const Entry& entry) {
  const std::string flag = entry.key;
  Chart chart{.title = concat(section.metric.name, " against ", entry.label),
              .note = "At the end of the runs.",
              .x = {.label = entry.label, .log2 = true},
              .y = {.label = section.metric.heading}};
  if (std::ranges::count(section.varied, flag) == 0) return chart;
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

Chart against_bits(const Section& section, const Groups& groups, const Look&, const Entry&) {
  Chart chart{.title = concat(section.metric.name, " against bits sent"),
              .note = "Counted bytes of the rank that sends most, frames included.",
              .points = true,
              .x = {.label = "bits sent per parameter and step", .log2 = true},
              .y = {.label = section.metric.heading}};
  std::string unknown;
  for (const Group* group : groups) {
    Series series = series_of(groups, *group);
    if (group->bits() > 0) append(series, group->bits(), final_of(section, *group));
    if (!std::isfinite(group->bits())) unknown += (unknown.empty() ? "" : ", ") + group->name;
    chart.series.push_back(std::move(series));
  }
  if (section.of_files) chart.note = "Bytes as the files say.";
  if (!unknown.empty())
    chart.note += concat(" Not shown, without bytes or parameters: ", unknown, ".");
  return chart;
}

// In the order of the page.
constexpr Entry kCharts[] = {
    {"epoch", true, result_curves},
    {"loss", true, step_curves, "loss", "training loss", "training loss, nats"},
    {"rate", true, step_curves, "lr", "learning rate", "learning rate"},
    {"gradient", true, step_curves, "grad_norm", "norm of the gradient",
     "2-norm of the mean gradient"},
    {"workers", false, against, "workers", "", "workers"},
    {"batch", false, against, "batch", "", "batch per worker, samples"},
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

// Notes that bands or bars are standard deviations; removes them if no seeds differ.
void tell_spread(Chart& chart) {
  const auto spreads = [](const Series& s) {
    return std::ranges::any_of(s.spread, [](double d) { return d > 0; });
  };
  if (std::ranges::none_of(chart.series, spreads)) {
    for (Series& s : chart.series) s.spread.clear();
    return;
  }
  chart.note += concat(chart.note.empty() ? "" : " ", "Mean over the seeds; the ",
                       chart.points || chart.x.log2 ? "bars are" : "band is",
                       " one standard deviation to each side.");
}

// Makes a chart; it has no series if there is only one point.
Chart chart_of(const Entry& entry, const Section& section, const Groups& groups,
               const std::string& facet, const Look& look) {
  Chart chart = entry.make(section, groups, look, entry);
  const std::string of_facet = facet.empty() ? "" : concat(", ", facet);
  chart.id = plain_id(entry.id + of_facet);
  chart.title += of_facet;
  chart.title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(chart.title[0])));
  std::erase_if(chart.series, [](const Series& s) { return s.x.empty(); });
  std::set<std::pair<double, double>> points;
  double least = INFINITY;
  for (const Series& s : chart.series) {
    for (std::size_t i = 0; i < s.x.size(); ++i) points.emplace(s.x[i], s.y[i]);
    least = std::min(least, std::ranges::min(s.y));
  }
  if (points.size() < 2) chart.series.clear();
  chart.y.log2 = look.log_y && least > 0;
  fit_x(chart);
  const bool cut = fit_y(chart);
  tell_spread(chart);
  if (cut) chart.note += " Peaks above the frame are cut.";
  return chart;
}

bool has_epochs(const Section& section) {
  return std::ranges::all_of(section.groups, [](const Group& group) {
    return std::ranges::all_of(group.runs,
                               [](const RunData* run) { return std::isfinite(run->epochs()); });
  });
}

}  // namespace

std::vector<Chart> charts_of(const Section& section, const Look& wanted) {
  Look look = wanted;
  if (look.x.empty()) look.x = has_epochs(section) ? "epoch" : "step";
  std::vector<std::pair<std::string, Groups>> facets, whole = {{"", {}}};
  for (const Group& group : section.groups) {
    if (group.runs.empty()) continue;
    whole.front().second.push_back(&group);
    auto facet = std::ranges::find(facets, group.facet, &decltype(facets)::value_type::first);
    if (facet == facets.end()) facet = facets.insert(facet, {group.facet, {}});
    facet->second.push_back(&group);
  }
  std::vector<Chart> charts;
  std::set<std::string> ids;
  for (const Entry& entry : kCharts) {
    for (const auto& [facet, groups] : entry.each_facet ? facets : whole) {
      Chart chart = chart_of(entry, section, groups, facet, look);
      if (chart.series.empty()) continue;
      // facets that differ only in signs, as "a_1" and "a-1", have the same id: number it
      const std::string id = chart.id;
      for (int n = 2; !ids.insert(chart.id).second; ++n) chart.id = concat(id, "-", n);
      charts.push_back(std::move(chart));
    }
  }
  return charts;
}

Chart chart_named(const std::vector<Section>& sections, const std::string& id, const Look& look) {
  std::string known;
  std::optional<Chart> plain;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    for (Chart& chart : charts_of(sections[i], look)) {
      const std::string full = concat("s", i + 1, "-", chart.id);
      if (id == full) return chart;
      known += concat(known.empty() ? "" : ", ", sections.size() > 1 ? full : chart.id);
      if (!plain && (id.empty() || id == chart.id)) plain = std::move(chart);
    }
  }
  PRIDE_CHECK(!known.empty(), "these runs make no chart");
  PRIDE_CHECK(plain.has_value(), "--chart ", id, ": there are ", known);
  return *plain;
}

}  // namespace pride::app
