// SPDX-License-Identifier: Apache-2.0
#include "program/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "pride/error.h"
#include "program/table.h"

namespace pride::inline program {
namespace {

// Colours after Okabe and Ito, which colour-blind readers can distinguish; brown replaces yellow,
// which is invisible on white.
constexpr int kColors = 8;
constexpr std::array<const char*, kColors> kLight = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#444444", "#8c510a"};
constexpr std::array<const char*, kColors> kDark = {"#4ea8e0", "#ff8a4c", "#2fc89b", "#e59fc6",
                                                    "#f2b84b", "#93d4f7", "#d0d0d0", "#cf9a5b"};

constexpr double kWidth = 640, kHeight = 360, kTitle = 34;
constexpr double kLeft = 68, kTop = 10, kBottom = 50;
constexpr double kEdge = 5;                  // margin of the frame, for points on its border
constexpr double kLine = 15, kLetter = 6.6;  // line height and letter width of names
constexpr std::size_t kMostLetters = 26;     // longest name
constexpr std::size_t kMarked = 9;           // lines with fewer points show them

std::string number(double value) { return decimals(value, 1); }

std::string short_text(double value, const char* format = "%.6g") {
  char text[32];
  std::snprintf(text, sizeof text, format, std::abs(value) < 1e-12 ? 0.0 : value);
  return text;
}

// About six round numbers between low and high.
std::vector<double> round_ticks(double low, double high) {
  const double raw = (high - low) / 6, power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double nice : {1.0, 2.0, 2.5, 5.0}) {
    if (nice * power >= raw) {
      step = nice * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double k = std::ceil(low / step); k * step <= high * (1 + 1e-12); ++k)
    ticks.push_back(k * step);
  return ticks;
}

// 1, 2 and 5 times the powers of ten; round numbers if these are too few.
std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * power >= low && digit * power <= high) ticks.push_back(digit * power);
    }
  }
  return ticks.size() > 2 ? ticks : round_ticks(low, high);
}

double spread(const Series& s, std::size_t i) { return s.spread.empty() ? 0 : s.spread[i]; }

std::string attributes(const Series& s, const char* kind) {
  return concat("<g class=\"", kind, " ", line_class(s.color), "\" data-color=\"", s.color, "\"");
}

// The name, shortened to kMostLetters.
std::string short_name(const std::string& name) {
  if (width_of(name) <= kMostLetters) return name;
  auto end = name.begin();
  for (std::size_t letters = 0; letters < kMostLetters || !begins_letter(*end); ++end) {
    letters += begins_letter(*end) ? 1 : 0;
  }
  return std::string(name.begin(), end) + "\u2026";
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    std::size_t longest = 0;
    for (const Series& s : chart.series) longest = std::max(longest, width_of(s.name));
    names_ = std::clamp(26 + kLetter * static_cast<double>(longest), 70.0, 200.0);
    right_ = kWidth - names_;
  }

  std::string svg(bool is_file) {
    const double top = is_file ? -kTitle : 0;
    out_ =
        concat("<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 ", top, " ",
               kWidth, " ", kHeight - top, "\" width=\"", kWidth, "\" height=\"", kHeight - top,
               "\" style=\"--names:", number(names_), "\" role=\"img\" aria-label=\"",
               escaped(chart_.title), "\" data-x=\"", escaped(chart_.x.label), "\">\n");
    if (is_file) {
      out_ += concat("<style>\n", chart_style(), "</style>\n");
      const auto letters = static_cast<double>(std::max<std::size_t>(width_of(chart_.title), 1));
      const double size = std::min(15.0, 1.6 * (kWidth - kLeft) / letters);
      text(kLeft, top + 20,
           concat("style=\"font-weight:600;font-size:", number(size), "px\"").c_str(),
           chart_.title);
    }
    axes();
    // an inner svg clips to the frame
    const std::string width = number(right_ - kLeft + 2 * kEdge);
    constexpr double height = kFloor - kTop + 2 * kEdge;
    out_ += concat("<svg x=\"", kLeft - kEdge, "\" y=\"", kTop - kEdge, "\" width=\"", width,
                   "\" height=\"", height, "\" viewBox=\"", kLeft - kEdge, " ", kTop - kEdge, " ",
                   width, " ", height, "\">\n");
    for (const Series& s : chart_.series) {
      if (!chart_.points && !s.spread.empty()) band(s);
    }
    for (const Series& s : chart_.series) line(s);
    out_ += "</svg>\n";
    names();
    return out_ + "</svg>\n";
  }

 private:
  // The position on the axis, from 0 to 1. On a logarithmic axis, values up to 0 lie far outside.
  static double share(const ChartAxis& a, double value) {
    if (!a.log2) return (value - a.min) / (a.max - a.min);
    return std::log(std::max(value, a.min * 1e-3) / a.min) / std::log(a.max / a.min);
  }
  double x(double value) const { return kLeft + share(chart_.x, value) * (right_ - kLeft); }
  double y(double value) const { return kFloor - share(chart_.y, value) * (kFloor - kTop); }
  static constexpr double kFloor = kHeight - kBottom;

  void text(double at_x, double at_y, const char* look, const std::string& words) {
    out_ += concat("<text x=\"", number(at_x), "\" y=\"", number(at_y), "\" ", look, ">",
                   escaped(words), "</text>\n");
  }

  void axes() {
    const std::vector<double> xs =
        chart_.x.ticks.empty() ? round_ticks(chart_.x.min, chart_.x.max) : chart_.x.ticks;
    std::string grid;
    double free = 0;  // right end of the last number
    for (const double tick : xs) {
      const std::string words = short_text(tick);
      const double half = kLetter / 2 * static_cast<double>(words.size());
      grid += concat("M", number(x(tick)), " ", kTop, "V", kFloor);
      if (x(tick) - half < free) continue;
      text(x(tick), kFloor + 18, "text-anchor=\"middle\"", words);
      free = x(tick) + half + kLetter;
    }
    const auto y_ticks = chart_.y.log2 ? log_ticks : round_ticks;
    std::size_t longest = 0;
    for (const double tick : y_ticks(chart_.y.min, chart_.y.max)) {
      longest = std::max(longest, short_text(tick).size());
      grid += concat("M", kLeft, " ", number(y(tick)), "H", number(right_));
      text(kLeft - 8, y(tick) + 4, "text-anchor=\"end\"", short_text(tick));
    }
    out_ += concat("<path class=\"grid\" d=\"", grid, "\"/>\n");
    text((kLeft + right_) / 2, kHeight - 10, "text-anchor=\"middle\"", chart_.x.label);
    out_ += concat("<text text-anchor=\"middle\" transform=\"translate(", longest > 5 ? 10 : 15,
                   " ", number((kTop + kFloor) / 2), ") rotate(-90)\">", escaped(chart_.y.label),
                   "</text>\n");
  }

  void band(const Series& s) {
    std::string there, back;
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      const std::string at = number(x(s.x[i]));
      there += concat(there.empty() ? "M" : "L", at, " ", number(y(s.y[i] + spread(s, i))));
      back.insert(0, concat("L", at, " ", number(y(s.y[i] - spread(s, i)))));
    }
    out_ += concat(attributes(s, "band"), "><path d=\"", there, back, "Z\"/></g>\n");
  }

  // A path through all points; bars and circles if there are few.
  void line(const Series& s) {
    std::string path, bars, circles, at;
    const bool marked = chart_.points || s.x.size() < kMarked;
    for (std::size_t i = 0; i < s.x.size(); ++i) {
      const std::string px = number(x(s.x[i])), py = number(y(s.y[i]));
      const double d = spread(s, i);
      path += concat(path.empty() ? "M" : "L", px, " ", py);
      at += concat(at.empty() ? "" : ",", short_text(s.x[i], "%.4g "), short_text(s.y[i], "%.4g "),
                   short_text(d, "%.2g"));
      if (!marked) continue;
      if (d > 0 && (chart_.points || chart_.x.log2))
        bars += concat("M", px, " ", number(y(s.y[i] - d)), "V", number(y(s.y[i] + d)));
      circles += concat("<circle cx=\"", px, "\" cy=\"", py, "\" r=\"3\"/>");
    }
    out_ += concat(attributes(s, "series"), " data-name=\"", escaped(s.name), "\" data-at=\"", at,
                   "\">", chart_.points ? "<path class=\"none\" d=\"" : "<path d=\"", path, "\"/>",
                   bars.empty() ? "" : concat("<path class=\"bars\" d=\"", bars, "\"/>"), circles,
                   "</g>\n");
  }

  // Names beside the ends of the lines, moved apart if they would touch.
  void names() {
    struct Name {
      const Series* series;
      double at, wanted;
    };
    std::vector<Name> all;
    for (const Series& s : chart_.series) {
      const double wanted = std::clamp(y(s.y.back()), kTop, kFloor);
      all.push_back({&s, wanted, wanted});
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Name& a, const Name& b) { return a.at < b.at; });
    const double apart = std::min(kLine, (kFloor - kTop) / static_cast<double>(all.size()));
    double free = kTop;
    for (Name& name : all) free = (name.at = std::max(name.at, free)) + apart;
    double floor = kFloor + apart / 2;
    for (auto name = all.rbegin(); name != all.rend(); ++name) {
      floor = (name->at = std::min(name->at, floor)) - apart;
    }
    for (const Name& name : all) {
      const Series& s = *name.series;
      out_ += concat(attributes(s, "name"), "><path d=\"M", number(x(s.x.back()) + 5), " ",
                     number(name.wanted), "L", number(right_ + 12), " ", number(name.at), "\"/>");
      text(right_ + 16, name.at + 4, "", short_name(s.name));
      out_ += "</g>\n";
    }
  }

  const Chart& chart_;
  double names_, right_;  // width of the names, end of the frame
  std::string out_;
};

}  // namespace

std::string svg_of(const Chart& chart) { return Drawing(chart).svg(false); }

std::string svg_file(const Chart& chart) { return Drawing(chart).svg(true); }

std::string line_class(int color) {
  return concat("c", color % kColors, " dash", color / kColors % 3);
}

std::string chart_style() {
  std::string light, dark;
  for (int i = 0; i < kColors; ++i) {
    light += concat(".c", i, "{color:", kLight[i], "}");
    dark += concat(".c", i, "{color:", kDark[i], "}");
  }
  return concat(
      ".chart text{font:12px system-ui,sans-serif;fill:#333}.chart "
      "path{fill:none}.grid{stroke:#8884}.series{stroke:currentColor;"
      "stroke-width:2;stroke-linejoin:round}.series circle{fill:currentColor}.chart .none{stroke:"
      "none}.chart .band path{fill:currentColor;opacity:.15}.name path{stroke:currentColor;"
      "opacity:.45}.chart .name text{fill:currentColor}\n"
      ".series.dash1 path:not(.bars){stroke-dasharray:7 4}"
      ".series.dash2 path:not(.bars){stroke-dasharray:2 3}"
      ".chart .dash1 circle{fill:none}\n",
      light, "\n@media(prefers-color-scheme:dark){.chart text{fill:#ddd}", dark, "}\n");
}

std::string escaped(const std::string& text) {
  static constexpr std::pair<char, const char*> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string safe;
  for (const char c : text) {
    const auto* entity = std::ranges::find(kEntities, c, &std::pair<char, const char*>::first);
    // control characters are not allowed in XML
    const bool control = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
    safe += entity != std::end(kEntities) ? entity->second : std::string(1, control ? ' ' : c);
  }
  return safe;
}

}  // namespace pride::inline program
