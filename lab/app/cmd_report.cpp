// `pride report`: runs as one HTML page, or one of its charts as SVG or PNG.
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"
#include "pride/error.h"
#include "program/build_info.h"
#include "program/flag_values.h"
#include "program/program.h"
#include "program/svg.h"
#include "program/units.h"
#include "report/metrics_file.h"
#include "report/page.h"
#include "report/png.h"

namespace pride::app {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<std::string> runs, metrics;
  std::string out = "report.html", title, svg, png, chart, numbers, from;
  Look look;
};

void write_text(const std::string& file, const std::string& text) {
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (out) return;
  throw DataError(concat("cannot write ", file, ": ", std::generic_category().message(errno)));
}

std::string title_of(const ReportOptions& options, const Loaded& loaded) {
  if (!options.title.empty()) return options.title;
  const Source& first = loaded.sources.front();
  if (loaded.sources.size() == 1 && !first.title.empty()) return first.title;
  const fs::path folder = fs::absolute(first.name).lexically_normal();
  const fs::path name = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  return loaded.sources.size() == 1 ? name.string()
                                    : concat(loaded.sources.size(), " sets of runs");
}

std::string read_text(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError("cannot read");
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_chart(const ReportOptions& options, const Chart& chart) {
  for (const auto& [file, text] :
       {std::pair(options.svg, svg_file(chart)), {options.numbers, json_of(chart)}}) {
    if (file.empty()) continue;
    write_text(file, text);
    std::cout << file << std::endl;
  }
  if (options.png.empty()) return;
  write_png(svg_file(chart), options.png);
  std::cout << options.png << std::endl;
}

void redraw(const ReportOptions& options) {
  try {
    write_chart(options, chart_of(read_text(options.from)));
  } catch (const DataError& error) {
    throw DataError(concat(options.from, ": ", error.what()));
  }
}

void report(ReportOptions& options) {
  const bool has_runs = !options.runs.empty() || !options.metrics.empty();
  PRIDE_CHECK(
      has_runs == options.from.empty(),
      "pride report needs folders of runs, --metrics, or --from with the numbers of a chart");
  PRIDE_CHECK(options.look.link.empty() || options.look.x == "time", "--link needs --x time");
  PRIDE_CHECK(options.look.link.empty() || options.metrics.empty(),
              "--link needs the time of computing alone, which files of --metrics do not have");
  const bool one_chart = !options.svg.empty() || !options.png.empty() || !options.numbers.empty();
  PRIDE_CHECK(one_chart || (options.chart.empty() && options.from.empty()),
              "--chart and --from need --svg, --png or --numbers");
  if (!options.from.empty()) return redraw(options);
  Loaded loaded;
  for (const std::string& run : options.runs) load_runs(run, loaded);
  for (const std::string& file : options.metrics) load_metrics(file, loaded);
  const std::vector<Section> sections = sections_of(loaded);
  if (sections.empty()) {
    const std::string why = loaded.runs.empty() ? "there is none" : loaded.runs.front().error;
    throw DataError(concat("no run has a result yet: ", why));
  }
  if (one_chart) {
    const Chart chart = chart_named(sections, options.chart, options.look);
    // a page has these notes itself
    for (const std::string& note : notes_of(loaded, sections)) {
      std::cerr << "pride: note: " << note << '\n';
    }
    return write_chart(options, chart);
  }
  const std::string commit = kGitDescribe;
  const PageFacts facts{
      .title = title_of(options, loaded),
      .program = concat("pride ", kVersion, commit.empty() ? "" : " (" + commit + ")")};
  write_text(options.out, page_of(facts, loaded, sections, options.look));
  std::cout << options.out << std::endl;
}

}  // namespace

void add_report(CLI::App& command) {
  ReportOptions& options = arguments_of(command, report);
  command.add_option(
      "runs", options.runs,
      "Folders of `pride sweep`, `pride compare`, `pride train`, or folders of such folders");
  command
      .add_option("--metrics", options.metrics,
                  "A file of JSON lines of a PyTorch program, as FILE or NAME=FILE; repeatable")
      ->allow_extra_args(false);
  command.add_option("--out", options.out, "File to write the page to")->capture_default_str();
  command.add_option("--title", options.title,
                     "Title of the page. Default: the experiment's name, or the folder's");
  command.add_option("--svg", options.svg, "Write one chart as SVG to this file instead of a page");
  command.add_option("--png", options.png, "The same as PNG, 1600 pixels wide; needs rsvg-convert");
  command.add_option("--numbers", options.numbers,
                     "Write the numbers of one chart as JSON to this file instead of a page");
  command.add_option(
      "--chart", options.chart,
      "With --svg, --png or --numbers: epoch, loss, rate, gradient, workers, batch or bits, or "
      "another "
      "that the error message lists; s2-loss is the second section's. Default: the page's first");
  command.add_option("--from", options.from,
                     "Draw the chart from a file of --numbers, instead of runs");
  command
      .add_option("--x", options.look.x,
                  "Horizontal axis of curves. Default: epoch, or step if a run has no epochs")
      ->check(CLI::IsMember({"epoch", "step", "time", "bytes"}));
  command
      .add_option("--link", options.look.link,
                  "With --x time, a rate such as 10Mbit/s: a step takes its computing time plus "
                  "its bytes over this link. Default: its measured time")
      ->check(unit_check(parse_rate));
  command.add_flag("--log-y", options.look.log_y,
                   "Logarithmic values, in charts with only positive values");
}

}  // namespace pride::app
