// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pride/error.h"
#include "report/assets.h"
#include "report/svg.h"
#include "report/tables.h"

namespace pride::app {
namespace {

// Nothing from anywhere: whatever a run's files say, the page asks no one for anything.
constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

std::string section_id(std::size_t index) { return concat("s", index + 1); }

std::string tag(const char* name, const std::string& text) {
  return concat("<", name, ">", escaped(text), "</", name, ">\n");
}

// For a script element: no text of a file can end it.
std::string script_json(const nlohmann::ordered_json& json) {
  const std::string text =
      json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  std::string safe;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&') {
      safe += c == '<' ? "\\u003c" : c == '>' ? "\\u003e" : "\\u0026";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::vector<std::string> labels_of(const Section& section) {
  std::vector<std::string> labels;
  for (const Group& group : section.groups) {
    if (group.color == static_cast<int>(labels.size())) labels.push_back(group.label);
  }
  return labels;
}

nlohmann::ordered_json numbers_of(const std::vector<Section>& sections) {
  nlohmann::ordered_json light = nlohmann::ordered_json::array(), dark = light, all = light;
  for (int i = 0; i < kColors; ++i) {
    light.push_back(light_color(i));
    dark.push_back(dark_color(i));
  }
  for (std::size_t i = 0; i < sections.size(); ++i) {
    nlohmann::ordered_json charts = nlohmann::ordered_json::array();
    for (const Chart& chart : charts_of(sections[i])) charts.push_back(to_json(chart));
    all.push_back({{"id", section_id(i)},
                   {"labels", labels_of(sections[i])},
                   {"palette", {light, dark}},
                   {"charts", charts}});
  }
  return all;
}

std::string figures(const Section& section, const std::string& id) {
  std::string html =
      concat("<ul class=\"keys\" id=\"", id, "-keys\"></ul>\n<div class=\"charts\">\n");
  for (const Chart& chart : charts_of(section)) {
    html += concat("<figure>\n", tag("h3", chart.title), "<div class=\"chart\" id=\"", id, "-",
                   escaped(chart.id), "\" role=\"img\" aria-label=\"", escaped(chart.title),
                   "\"></div>\n", tag("figcaption", chart.note), "</figure>\n");
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
  if (items.empty()) return "";
  return concat("<div class=\"warning\" role=\"note\">Not among the numbers below:\n<ul>\n", items,
                "</ul></div>\n");
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

std::string section_html(const Section& section, std::size_t index) {
  const std::string id = section_id(index);
  return concat("<section id=\"", id, "\">\n", tag("h2", section.title), figures(section, id),
                tag("h3", "Results"), results_table_html(section),
                tag("h3", "Where a step's time goes"), stage_bars(section),
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
                    const std::vector<Section>& sections) {
  std::string html = concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"",
      kPolicy, "\">\n<link rel=\"icon\" href=\"data:,\">\n", tag("title", facts.title), "<style>\n",
      kUplotCss, "\n", kPageCss, "</style>\n</head>\n<body>\n<main>\n",
      introduction(facts, loaded, sections));
  for (std::size_t i = 0; i < sections.size(); ++i) html += section_html(sections[i], i);
  html += files_of(loaded);
  html +=
      concat("<footer>Made by ", escaped(facts.program),
             ". Charts: uPlot, MIT licence.</footer>\n</main>\n",
             "<noscript><p class=\"warning\">The charts need JavaScript; the tables do not.</p>"
             "</noscript>\n<script type=\"application/json\" id=\"numbers\">",
             script_json(numbers_of(sections)), "</script>\n<script>\n", "/*\n", kUplotLicence,
             "*/\n", kUplotJs, "\n</script>\n<script>\n", kPageJs, "</script>\n</body>\n</html>\n");
  return html;
}

}  // namespace pride::app
