// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

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

// A button for each label, with its line: page.js hides and shows what has its colour.
std::string keys_of(const Section& section) {
  std::string html;
  int next = 0;
  for (const Group& group : section.groups) {
    if (group.color != next) continue;
    html += concat("<li><button type=\"button\" aria-pressed=\"true\" data-key=\"", next++,
                   "\"><svg class=\"chart\" width=\"26\" height=\"8\"><g class=\"series ",
                   line_class(group.color), "\"><path d=\"M0 4H26\"/></g></svg>",
                   escaped(group.label), "</button></li>\n");
  }
  return concat("<ul class=\"keys\">\n", html, "</ul>\n");
}

std::string figures(const Section& section, const std::string& id) {
  std::string html = concat(keys_of(section), "<div class=\"charts\">\n");
  for (const Chart& chart : charts_of(section)) {
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
      chart_style(), kPageCss, "</style>\n</head>\n<body>\n<main>\n",
      introduction(facts, loaded, sections));
  for (std::size_t i = 0; i < sections.size(); ++i) html += section_html(sections[i], i);
  html += files_of(loaded);
  return html + concat("<footer>Made by ", escaped(facts.program),
                       ".</footer>\n</main>\n<script>\n", kPageJs, "</script>\n</body>\n</html>\n");
}

}  // namespace pride::app
