// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "pride/error.h"

namespace pride::app {
namespace {

// after Okabe and Ito; yellow, which white ground swallows, gave way to a brown
constexpr std::array<const char*, kColors> kLight = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                     "#e69f00", "#56b4e9", "#444444", "#8c510a"};
constexpr std::array<const char*, kColors> kDark = {"#4ea8e0", "#ff8a4c", "#2fc89b", "#e59fc6",
                                                    "#f2b84b", "#93d4f7", "#d0d0d0", "#cf9a5b"};
constexpr std::array<const char*, 3> kDashes = {"", "7 4", "2 3"};

constexpr double kWidth = 760, kHeight = 420;
constexpr double kLeft = 62, kRight = 170, kTop = 44, kBottom = 52;
constexpr double kLine = 15;  // between two names

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string tick_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::abs(value) < 1e-12 ? 0.0 : value);
  return text;
}

// About six round numbers.
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

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {}

  std::string svg();

 private:
  double x(double value) const {
    const ChartAxis& a = chart_.x;
    const double share = a.log2 ? std::log(value / a.min) / std::log(a.max / a.min)
                                : (value - a.min) / (a.max - a.min);
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double share = (value - chart_.y.min) / (chart_.y.max - chart_.y.min);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }
  void style();
  void axes();
  void band(const Series& s);
  void line(const Series& s);
  void bars(const Series& s);
  void names();
  void text(double at_x, double at_y, const char* attributes, const std::string& words);

  const Chart& chart_;
  std::string out_;
};

void Drawing::text(double at_x, double at_y, const char* attributes, const std::string& words) {
  out_ += concat("<text x=\"", number(at_x), "\" y=\"", number(at_y), "\" ", attributes, ">",
                 escaped(words), "</text>\n");
}

void Drawing::style() {
  out_ +=
      "<style>\ntext{font:12px system-ui,sans-serif;fill:#333}.grid{stroke:#8884;fill:none}"
      ".b{stroke:none;opacity:.15}.l{fill:none;stroke-width:2;stroke-linejoin:round}"
      ".lead{fill:none;opacity:.45}.t{font-size:15px;font-weight:600}\n";
  std::string dark = "text{fill:#ddd}";
  for (int i = 0; i < kColors; ++i) {
    out_ += concat(".c", i, "{stroke:", kLight[i], "}.f", i, "{fill:", kLight[i], "}\n");
    dark += concat(".c", i, "{stroke:", kDark[i], "}.f", i, "{fill:", kDark[i], "}");
  }
  out_ += concat("@media(prefers-color-scheme:dark){", dark, "}\n</style>\n",
                 "<clipPath id=\"frame\"><rect x=\"", kLeft, "\" y=\"", kTop, "\" width=\"",
                 kWidth - kLeft - kRight, "\" height=\"", kHeight - kTop - kBottom,
                 "\"/></clipPath>\n");
}

void Drawing::axes() {
  const std::vector<double> xs =
      chart_.x.ticks.empty() ? round_ticks(chart_.x.min, chart_.x.max) : chart_.x.ticks;
  for (const double tick : xs) {
    out_ += concat("<path class=\"grid\" d=\"M", number(x(tick)), " ", kTop, "V", kHeight - kBottom,
                   "\"/>\n");
    text(x(tick), kHeight - kBottom + 18, "text-anchor=\"middle\"", tick_text(tick));
  }
  for (const double tick : round_ticks(chart_.y.min, chart_.y.max)) {
    out_ += concat("<path class=\"grid\" d=\"M", kLeft, " ", number(y(tick)), "H", kWidth - kRight,
                   "\"/>\n");
    text(kLeft - 8, y(tick) + 4, "text-anchor=\"end\"", tick_text(tick));
  }
  text(kLeft, 24, "class=\"t\"", chart_.title);
  text((kLeft + kWidth - kRight) / 2, kHeight - 12, "text-anchor=\"middle\"", chart_.x.label);
  const double middle = (kTop + kHeight - kBottom) / 2;
  out_ += concat("<text text-anchor=\"middle\" transform=\"translate(16 ", number(middle),
                 ") rotate(-90)\">", escaped(chart_.y.label), "</text>\n");
}

void Drawing::band(const Series& s) {
  std::string there, back;
  for (std::size_t i = 0; i < s.x.size(); ++i) {
    if (!std::isfinite(s.low[i]) || !std::isfinite(s.high[i])) continue;
    const std::string at = number(x(s.x[i]));
    there += concat(there.empty() ? "M" : "L", at, " ", number(y(s.high[i])));
    back.insert(0, concat("L", at, " ", number(y(s.low[i]))));
  }
  out_ += concat("<path class=\"b f", s.color % kColors, "\" d=\"", there, back, "Z\"/>\n");
}

void Drawing::line(const Series& s) {
  std::string path;
  for (std::size_t i = 0; i < s.x.size(); ++i) {
    if (!std::isfinite(s.y[i])) continue;
    path += concat(path.empty() ? "M" : "L", number(x(s.x[i])), " ", number(y(s.y[i])));
  }
  const char* dash = kDashes[static_cast<std::size_t>(s.color / kColors) % kDashes.size()];
  out_ += concat("<path class=\"l c", s.color % kColors, "\" stroke-dasharray=\"", dash, "\" d=\"",
                 path, "\"/>\n");
}

// points with their spread
void Drawing::bars(const Series& s) {
  for (std::size_t i = 0; i < s.x.size(); ++i) {
    if (!std::isfinite(s.y[i])) continue;
    const std::string at = number(x(s.x[i]));
    const char* look = s.color / kColors % 2 == 1 ? "l c" : "f";  // hollow where lines are dashed
    out_ += concat("<path class=\"l c", s.color % kColors, "\" d=\"M", at, " ", number(y(s.low[i])),
                   "V", number(y(s.high[i])), "\"/>\n<circle class=\"", look, s.color % kColors,
                   "\" cx=\"", at, "\" cy=\"", number(y(s.y[i])), "\" r=\"4\"/>\n");
  }
}

// Beside the ends of the lines, moved apart where they would touch.
void Drawing::names() {
  struct Name {
    const Series* series;
    double at, wanted;
  };
  std::vector<Name> all;
  for (const Series& s : chart_.series) {
    const auto last =
        std::find_if(s.y.rbegin(), s.y.rend(), [](double v) { return std::isfinite(v); });
    if (last == s.y.rend()) continue;
    const double wanted = std::clamp(y(*last), kTop, kHeight - kBottom);
    all.push_back({&s, wanted, wanted});
  }
  std::sort(all.begin(), all.end(), [](const Name& a, const Name& b) { return a.at < b.at; });
  double free = kTop;
  for (Name& name : all) free = (name.at = std::max(name.at, free)) + kLine;
  double floor = kHeight - kBottom + kLine / 2;
  for (auto name = all.rbegin(); name != all.rend(); ++name) {
    floor = (name->at = std::min(name->at, floor)) - kLine;
  }
  for (const Name& name : all) {
    const Series& s = *name.series;
    const std::size_t last = s.x.size() - 1;
    out_ += concat("<path class=\"lead c", s.color % kColors, "\" d=\"M", number(x(s.x[last]) + 5),
                   " ", number(name.wanted), "L", number(kWidth - kRight + 12), " ",
                   number(name.at), "\"/>\n");
    const std::string look = concat("class=\"f", s.color % kColors, "\"");
    text(kWidth - kRight + 16, name.at + 4, look.c_str(), s.name);
  }
}

std::string Drawing::svg() {
  out_ = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
                "\" width=\"", kWidth, "\" height=\"", kHeight, "\" role=\"img\">\n<title>",
                escaped(chart_.title), "</title>\n");
  style();
  axes();
  out_ += "<g clip-path=\"url(#frame)\">\n";
  for (const Series& s : chart_.series) {
    if (!chart_.points) band(s);
  }
  for (const Series& s : chart_.series) chart_.points ? bars(s) : line(s);
  out_ += "</g>\n";
  names();
  return out_ + "</svg>\n";
}

}  // namespace

std::string svg_of(const Chart& chart) { return Drawing(chart).svg(); }

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        // control characters are in no XML
        safe += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return safe;
}

const char* light_color(int index) { return kLight[static_cast<std::size_t>(index % kColors)]; }
const char* dark_color(int index) { return kDark[static_cast<std::size_t>(index % kColors)]; }

}  // namespace pride::app
