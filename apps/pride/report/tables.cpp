// SPDX-License-Identifier: Apache-2.0
#include "report/tables.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "pride/error.h"
#include "report/svg.h"

namespace pride::app {
namespace {

struct Column {
  std::string heading;
  bool is_text = false;
};

struct Stage {
  const char* name;
  const char* key;  // of summary.json's "seconds"
};
constexpr Stage kStages[] = {{"data", "data_s"},
                             {"backward", "backward_s"},
                             {"encode", "encode_s"},
                             {"exchange", "exchange_s"},
                             {"apply", "apply_s"}};
constexpr const char* kRest = "rest of the step";

std::string digits(double value, int n) {
  if (!std::isfinite(value)) return "-";
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", n, value);
  return text;
}

// Decimals by the size of the spread, or of the number.
std::string with_spread(const Spread& spread, std::size_t n) {
  const double scale = n > 1 && spread.deviation > 0 ? spread.deviation : spread.mean / 500;
  const int places =
      std::clamp(1 - static_cast<int>(std::floor(std::log10(std::max(scale, 1e-9)))), 0, 4);
  const std::string mean = digits(spread.mean, places);
  return n > 1 ? concat(mean, " ± ", digits(spread.deviation, places)) : mean;
}

std::string head(const std::vector<Column>& columns) {
  std::string html = "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>";
  for (const Column& column : columns) {
    html += concat("<th scope=\"col\"", column.is_text ? " class=\"text\">" : ">",
                   escaped(column.heading), "</th>");
  }
  return html + "</tr></thead>\n<tbody>\n";
}

constexpr const char* kEnd = "</tbody></table></div>\n";

std::string cell(const std::string& text, const char* look = "") {
  const std::string attribute = *look != '\0' ? concat(" class=\"", look, "\"") : "";
  return concat("<td", attribute, ">", escaped(text), "</td>");
}

double mean_of(const Group& group, const char* key) {
  return group.spread([key](const RunData& run) { return run.summary.at(key).get<double>(); }).mean;
}

bool is_best(const Section& section, const Group& group) {
  const auto value = [&](const Group& g) {
    const double mean = final_of(section, g).mean;
    return section.metric.more_is_better ? -mean : mean;
  };
  return std::none_of(section.groups.begin(), section.groups.end(), [&](const Group& other) {
    return other.facet == group.facet && !other.runs.empty() && value(other) < value(group);
  });
}

std::string loss_cell(const Group& group) {
  const auto loss = [](const RunData& run) { return run.final.at("loss"); };
  return with_spread(group.spread(loss), group.runs.size());
}

std::string row(const Section& section, const Group& group) {
  std::string html = concat("<tr>", cell(group.label, "text"));
  for (const std::string& flag : section.varied) html += cell(group.setting(flag));
  html += cell(group.setting("lr")) + cell(group.setting("weight-decay"));
  const std::size_t n = group.runs.size();
  const std::string diverged =
      group.diverged > 0 && n > 0 ? concat(" (", group.diverged, " diverged)") : "";
  html += cell(group.failed > 0 ? concat(n, " of ", n + group.failed, diverged) : concat(n));
  if (n == 0) {
    return html + concat("<td colspan=\"6\" class=\"text\">",
                         group.diverged == group.failed ? "diverged" : "failed", "</td></tr>\n");
  }
  const double bytes = group.bits() / 8 * group.parameters();
  const double ring = fp32_ring_bytes(group.parameters(), static_cast<int>(group.world()));
  html += cell(with_spread(final_of(section, group), n), is_best(section, group) ? "best" : "");
  html += cell(loss_cell(group)) + cell(digits(group.bits(), 2)) + cell(grouped(bytes));
  html += cell(ratio_text(bytes, ring)) + cell(digits(mean_of(group, "step_ms"), 1));
  return html + "</tr>\n";
}

// Milliseconds of each stage, and what is left of the step.
std::vector<double> stage_ms(const Group& group) {
  std::vector<double> ms;
  double sum = 0;
  for (const Stage& stage : kStages) {
    ms.push_back(group
                     .spread([&](const RunData& run) {
                       const double steps = run.summary.at("steps_run");
                       const double seconds = run.summary.at("seconds").value(stage.key, 0.0);
                       return steps > 0 ? seconds * 1e3 / steps : 0;
                     })
                     .mean);
    sum += ms.back();
  }
  ms.push_back(std::max(mean_of(group, "step_ms") - sum, 0.0));
  return ms;
}

std::string stage_row(const Group& group, double longest) {
  const std::vector<double> ms = stage_ms(group);
  double sum = 0;
  std::string parts;
  for (std::size_t i = 0; i < ms.size(); ++i) {
    sum += ms[i];
    const std::string what = i < std::size(kStages) ? kStages[i].name : kRest;
    parts += concat("<i class=\"s", i, "\" style=\"width:", digits(100 * ms[i] / longest, 2),
                    "%\" title=\"", what, ": ", digits(ms[i], 2), " ms\"></i>");
  }
  return concat("<div class=\"stage\"><span>", escaped(group.name), "</span><span class=\"bar\">",
                parts, "</span><span>", digits(sum, 1), " ms</span></div>\n");
}

}  // namespace

std::string results_table_html(const Section& section) {
  std::vector<Column> columns = {{"method", true}};
  for (const std::string& flag : section.varied) columns.push_back({flag});
  for (const char* heading : {"learning rate", "weight decay", "seeds"})
    columns.push_back({heading});
  columns.push_back({section.metric.heading});
  for (const char* heading : {"loss", "bits per parameter and step", "bytes per step and rank",
                              "of fp32 ring", "ms per step"}) {
    columns.push_back({heading});
  }
  std::string html = head(columns);
  for (const Group& group : section.groups) html += row(section, group);
  return html + kEnd +
         "<p class=\"soft\">Mean ± standard deviation of the sample over the seeds; the best of "
         "its "
         "kind in bold. Bytes: counted, of the rank that sends most. Times of a busy machine say "
         "little.</p>\n";
}

std::string stage_bars(const Section& section) {
  double longest = 0;
  for (const Group& group : section.groups) {
    if (group.runs.empty()) continue;
    double sum = 0;
    for (const double ms : stage_ms(group)) sum += ms;
    longest = std::max(longest, sum);
  }
  if (longest == 0) return "";
  std::string html = "<div class=\"legend\">";
  for (std::size_t i = 0; i <= std::size(kStages); ++i) {
    html += concat("<span><i class=\"swatch s", i, "\"></i>",
                   i < std::size(kStages) ? kStages[i].name : kRest, "</span>");
  }
  html += "</div>\n<div class=\"stages\">\n";
  for (const Group& group : section.groups) {
    if (!group.runs.empty()) html += stage_row(group, longest);
  }
  return html +
         "</div>\n<p class=\"soft\">Milliseconds, of the slowest rank in each step; mean over "
         "steps and seeds. Backward includes forward.</p>\n";
}

std::string shared_settings(const Section& section) {
  std::string html = "<dl>\n";
  for (const auto& [flag, value] : section.shared) {
    if (value == "default" || value.empty()) continue;
    html += concat("<div><dt>", escaped(flag), "</dt><dd>", escaped(value), "</dd></div>\n");
  }
  for (const Group& group : section.groups) {
    if (group.runs.empty()) continue;
    const auto& data = group.summary().at("data");
    html += concat("<div><dt>data</dt><dd>", escaped(data.value("source", "")), ", hash ",
                   escaped(data.at("hash").get<std::string>()), "</dd></div>\n");
    break;
  }
  return html + "</dl>\n";
}

std::string run_table(const Section& section) {
  std::string html = head({{"run", true},
                           {"seed"},
                           {section.metric.heading},
                           {"epochs"},
                           {"steps"},
                           {"param_hash", true},
                           {"version", true},
                           {"folder", true},
                           {"command", true}});
  for (const Group& group : section.groups) {
    for (const RunData* run : group.runs) {
      const auto& s = run->summary;
      const auto value = run->final.find(section.metric.key);
      const bool has = value != run->final.end();
      html +=
          concat("<tr>", cell(group.name, "text"), cell(s.at("settings").at("seed").dump()),
                 cell(has ? digits(value->second * section.metric.factor, 3) : "-"),
                 cell(digits(s.at("epochs"), 2)), cell(grouped(s.at("steps"))),
                 cell(s.value("param_hash", ""), "text"),
                 cell(s.contains("versions") ? s.at("versions").value("commit", "") : "", "text"),
                 cell(run->folder, "text"), "<td class=\"text\"><code>", escaped(run->command),
                 "</code></td></tr>\n");
    }
  }
  return html + kEnd;
}

}  // namespace pride::app
