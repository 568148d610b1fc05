// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <algorithm>
#include <cmath>

#include "pride/error.h"
#include "program/svg.h"
#include "program/table.h"

namespace pride::app {
namespace {

// The page makes no request, whatever a run's files contain.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

struct Column {
  std::string heading;
  bool is_text = false;
};

struct Stage {
  const char* name;
  const char* key;  // in "seconds" of summary.json
};
constexpr Stage kStages[] = {{"data", "data_s"},
                             {"backward", "backward_s"},
                             {"encode", "encode_s"},
                             {"exchange", "exchange_s"},
                             {"apply", "apply_s"}};
constexpr const char* kRest = "rest of the step";

std::string digits(double value, int n) { return std::isfinite(value) ? decimals(value, n) : "-"; }

// The number of decimals depends on the spread, or on the number.
std::string with_spread(const Spread& spread, std::size_t n) {
  if (!std::isfinite(spread.mean)) return "-";
  const double scale = n > 1 && spread.deviation > 0 ? spread.deviation : spread.mean / 500;
  const int places =
      std::clamp(1 - static_cast<int>(std::floor(std::log10(std::max(scale, 1e-9)))), 0, 4);
  const std::string mean = digits(spread.mean, places);
  return n > 1 ? concat(mean, " ± ", digits(spread.deviation, places)) : mean;
}

std::string tag(const char* name, const std::string& text) {
  return concat("<", name, ">", escaped(text), "</", name, ">\n");
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

double step_ms(const Group& group) { return group.spread(&RunData::step_ms).mean; }

bool is_best(const Section& section, const Group& group) {
  const auto value = [&](const Group& g) {
    const double mean = final_of(section, g).mean;
    return section.metric.more_is_better ? -mean : mean;
  };
  if (!std::isfinite(value(group))) return false;
  return std::none_of(section.groups.begin(), section.groups.end(), [&](const Group& other) {
    return other.facet == group.facet && !other.runs.empty() && value(other) < value(group);
  });
}

std::string row(const Section& section, const Group& group) {
  std::string html = concat("<tr>", cell(group.row, "text"));
  for (const std::string& flag : section.columns) html += cell(group.setting(flag));
  const std::size_t n = group.runs.size();
  const std::string diverged =
      group.diverged > 0 && n > 0 ? concat(" (", group.diverged, " diverged)") : "";
  html += cell(group.failed > 0 ? concat(n, " of ", n + group.failed, diverged) : concat(n));
  if (n == 0) {
    return html + concat("<td colspan=\"6\" class=\"text\">",
                         group.diverged == group.failed ? "diverged" : "failed", "</td></tr>\n");
  }
  const auto value_of = [](const char* key) {
    return [key](const RunData& run) {
      const auto value = run.final.find(key);
      return value != run.final.end() ? value->second : NAN;
    };
  };
  const double bytes = group.spread([](const RunData& run) { return run.bytes_per_step; }).mean;
  const double ring = fp32_ring_bytes(group.parameters(), group.world());
  html += cell(with_spread(final_of(section, group), n), is_best(section, group) ? "best" : "");
  html += cell(with_spread(group.spread(value_of("loss")), n));
  const bool known = std::isfinite(bytes);
  html += cell(digits(group.bits(), 2)) + cell(known ? grouped(bytes) : "-");
  html += cell(known && std::isfinite(ring) ? ratio_text(bytes, ring) : "-");
  return html + cell(digits(step_ms(group), 1)) + "</tr>\n";
}

// Milliseconds of each stage, and the rest of the step.
std::vector<double> stage_ms(const Group& group) {
  std::vector<double> ms;
  double sum = 0;
  if (group.runs.empty() || group.summary().at("seconds").empty()) return {};
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
  ms.push_back(std::max(step_ms(group) - sum, 0.0));
  return ms;
}

std::string stage_row(const Group& group, double longest) {
  const std::vector<double> ms = stage_ms(group);
  std::string parts;
  for (std::size_t i = 0; i < ms.size(); ++i) {
    const std::string what = i < std::size(kStages) ? kStages[i].name : kRest;
    parts += concat("<i class=\"s", i, "\" style=\"width:", digits(100 * ms[i] / longest, 2),
                    "%\" title=\"", what, ": ", digits(ms[i], 2), " ms\"></i>");
  }
  return concat("<div class=\"stage\"><span>", escaped(group.name), "</span><span class=\"bar\">",
                parts, "</span><span>", digits(step_ms(group), 1), " ms</span></div>\n");
}

// The table of results: one row per group, best results marked.
std::string results_table_html(const Section& section) {
  std::vector<Column> columns = {{"method", true}};
  for (const std::string& flag : section.columns) {
    columns.push_back({flag == "lr" ? "learning rate" : flag});
  }
  columns.push_back({"seeds"});
  columns.push_back({section.metric.heading});
  for (const char* heading : {"loss", "bits per parameter and step", "bytes per step and rank",
                              "of fp32 ring", "ms per step"}) {
    columns.push_back({heading});
  }
  std::string html = head(columns);
  for (const Group& group : section.groups) html += row(section, group);
  const bool seeds =
      std::ranges::any_of(section.groups, [](const Group& g) { return g.runs.size() > 1; });
  return concat(html, kEnd, "<p class=\"soft\">",
                seeds ? "Mean ± standard deviation of the sample over the seeds; the" : "The",
                " best of its kind in bold. Bytes",
                section.of_files ? " and times: as the files say. " : ": counted, ",
                section.of_files ? "" : "of the rank that sends most. ",
                "Times of a busy machine are unreliable.</p>\n");
}

// One bar per group: data, backward, encode, exchange, apply, the rest.
std::string stage_bars(const Section& section) {
  double longest = 0;
  for (const Group& group : section.groups) {
    double sum = 0;
    for (const double ms : stage_ms(group)) sum += ms;
    longest = std::max(longest, sum);
  }
  if (longest == 0) return "";
  std::string html = tag("h3", "Where a step's time goes") + "<div class=\"legend\">";
  for (std::size_t i = 0; i <= std::size(kStages); ++i) {
    html += concat("<span><i class=\"swatch s", i, "\"></i>",
                   i < std::size(kStages) ? kStages[i].name : kRest, "</span>");
  }
  html += "</div>\n<div class=\"stages\">\n";
  for (const Group& group : section.groups) {
    if (!stage_ms(group).empty()) html += stage_row(group, longest);
  }
  return html +
         "</div>\n<p class=\"soft\">Milliseconds per step as in the table, mean over steps and "
         "seeds. Each part is that of its slowest rank. With overlap a bar is longer than its "
         "step. Backward includes forward.</p>\n";
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
    const std::string source =
        data.contains("source") ? concat(data.value("source", ""), ", hash ") : "";
    html +=
        concat("<div><dt>data</dt><dd>", escaped(source + data.value("hash", "")), "</dd></div>\n");
    break;
  }
  return html + "</dl>\n";
}

// One row per run: differences, hash of the parameters, command.
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
      const auto& seed = s.at("settings").at("seed");
      const auto value = run->final.find(section.metric.key);
      const bool has = value != run->final.end();
      html +=
          concat("<tr>", cell(group.name, "text"), cell(seed.is_null() ? "-" : seed.dump()),
                 cell(has ? digits(value->second * section.metric.factor, 3) : "-"),
                 cell(digits(run->epochs(), 2)), cell(grouped(s.at("steps"))),
                 cell(s.value("param_hash", ""), "text"),
                 cell(s.contains("versions") ? s.at("versions").value("commit", "") : "", "text"),
                 cell(run->folder, "text"), "<td class=\"text\"><code>", escaped(run->command),
                 "</code></td></tr>\n");
    }
  }
  return html + kEnd;
}

// A button for each row, with its line. page.js hides and shows the row's colour in all charts.
std::string keys_of(const Section& section) {
  std::string html;
  int next = 0;
  for (const Group& group : section.groups) {
    if (group.color != next) continue;
    html += concat("<li><button type=\"button\" aria-pressed=\"true\" data-key=\"", next++,
                   "\"><svg class=\"chart\" width=\"26\" height=\"8\"><g class=\"series ",
                   line_class(group.color), "\"><path d=\"M0 4H26\"/></g></svg>",
                   escaped(group.row), "</button></li>\n");
  }
  return concat("<ul class=\"keys\">\n", html, "</ul>\n");
}

std::string figures(const Section& section, const std::string& id, const Look& look) {
  std::string html = concat(keys_of(section), "<div class=\"charts\">\n");
  for (const Chart& chart : charts_of(section, look)) {
    html +=
        concat("<figure id=\"", id, "-", escaped(chart.id), "\">\n", tag("h3", chart.title),
               "<div class=\"plot\">", svg_of(chart), "<div class=\"tip\" hidden></div></div>\n",
               tag("figcaption", chart.note), "</figure>\n");
  }
  return html + "</div>\n";
}

std::string warnings(const Loaded& loaded, const std::vector<Section>& sections) {
  std::string items;
  for (const Source& source : loaded.sources) {
    if (source.complete) continue;
    const std::string missing =
        source.missing > 0 ? concat(": ", source.missing, " runs are missing") : "";
    items += tag("li", concat(source.name, " is not complete", missing));
  }
  for (const RunData& run : loaded.runs) {
    if (!run.ok() && !run.tuning) {
      items += tag("li", concat(run.label, " (", run.folder, "): ", run.error));
    }
  }
  for (const Section& section : sections) {
    for (const auto& [run, known] : section.repeated) {
      items += tag("li", concat(run->label, " (", run->folder, "): the settings and the seed of ",
                                known->folder));
    }
  }
  std::string notes;
  for (const std::string& note : notes_of(loaded, sections)) notes += tag("li", note);
  const auto box = [](const char* head, const std::string& list) {
    return list.empty() ? ""
                        : concat("<div class=\"warning\" role=\"note\">", head, "\n<ul>\n", list,
                                 "</ul></div>\n");
  };
  return box("Not among the numbers below:", items) + box("To know of the numbers below:", notes);
}

std::string introduction(const PageFacts& facts, const Loaded& loaded,
                         const std::vector<Section>& sections) {
  std::string html = tag("h1", facts.title);
  for (const Source& source : loaded.sources) {
    if (!source.title.empty() && source.title != facts.title) html += tag("p", source.title);
    if (!source.note.empty()) html += tag("p", source.note);
  }
  int good = 0, tuning = 0;
  for (const RunData& run : loaded.runs) (run.tuning ? tuning : good) += run.ok() ? 1 : 0;
  for (const Section& section : sections) good -= static_cast<int>(section.repeated.size());
  std::string counts = concat(good, good == 1 ? " run" : " runs");
  if (tuning > 0) counts += concat(", and ", tuning, " to choose settings");
  return html +
         concat("<p class=\"soft\">", escaped(counts), ", by ", escaped(facts.program), "</p>\n") +
         warnings(loaded, sections);
}

std::string section_html(const Section& section, std::size_t index, const Look& look) {
  const std::string id = concat("s", index + 1);
  return concat("<section id=\"", id, "\">\n", tag("h2", section.title), figures(section, id, look),
                tag("h3", "Results"), results_table_html(section), stage_bars(section),
                "<details open><summary>Settings that all runs share</summary>\n",
                shared_settings(section), "</details>\n",
                "<details><summary>Settings and runs, one by one</summary>\n", run_table(section),
                "</details>\n</section>\n");
}

std::string files_of(const Loaded& loaded) {
  std::string html;
  for (const Source& source : loaded.sources) {
    if (source.file.empty()) continue;
    html += concat("<details><summary>The experiment file of ", escaped(source.name),
                   "</summary>\n<pre>", escaped(source.file), "</pre></details>\n");
  }
  return html;
}

}  // namespace

std::string page_of(const PageFacts& facts, const Loaded& loaded,
                    const std::vector<Section>& sections, const Look& look) {
  std::string html = concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"",
      kPolicy, "\">\n<link rel=\"icon\" href=\"data:,\">\n", tag("title", facts.title), "<style>\n",
      chart_style(), kPageCss, "</style>\n</head>\n<body>\n<main>\n",
      introduction(facts, loaded, sections));
  for (std::size_t i = 0; i < sections.size(); ++i) html += section_html(sections[i], i, look);
  html += files_of(loaded);
  return html + concat("<footer>Made by ", escaped(facts.program),
                       ".</footer>\n</main>\n<script>\n", kPageJs, "</script>\n</body>\n</html>\n");
}

}  // namespace pride::app
