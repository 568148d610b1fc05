// Numbers, counts and units in the values of flags.
// SPDX-License-Identifier: Apache-2.0
#include "program/flag_values.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <set>

namespace pride::inline program {
namespace {

// WHOLE.FRACTION times a power of ten as digits; nothing if that is not an integer.
std::optional<std::string> scaled(const std::string& whole, std::string fraction, int exponent) {
  constexpr int kMostDigits = 30;
  if (exponent < 0 || exponent > kMostDigits) return std::nullopt;
  fraction.erase(fraction.find_last_not_of('0') + 1);
  const auto places = static_cast<std::size_t>(exponent);
  if (fraction.size() > places) return std::nullopt;
  std::string digits = whole + fraction + std::string(places - fraction.size(), '0');
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return digits;
}

}  // namespace

std::string digits_of_count(const std::string& text, bool bytes) {
  static const std::regex kCount(
      R"(([0-9]+)(?:\.([0-9]*))?(?:[eE]\+?([0-9]{1,2}))?([kKMGT]?)(i?)(B?))");
  std::smatch parts;
  if (!std::regex_match(text, parts, kCount)) return text;
  const bool binary = parts[5].length() > 0, has_b = parts[6].length() > 0;
  if ((has_b && !bytes) || (binary && !has_b)) return text;
  const int exponent = parts[3].matched ? std::stoi(parts[3]) : 0;
  const std::string prefix = parts[4];
  // k, M, G, T are powers of 1,000; Ki, Mi, Gi, Ti of 1,024
  const auto power =
      prefix.empty() ? 0
                     : 1 + static_cast<int>(std::string("kMGT").find(prefix == "K" ? "k" : prefix));
  const auto digits = scaled(parts[1], parts[2], exponent + (binary ? 0 : 3 * power));
  if (!digits || !binary) return digits.value_or(text);
  if (digits->size() > 6) return text;
  return std::to_string(std::stoull(*digits) << (10 * power));
}

std::string wrong_number(const std::string& text, Limits limits) {
  errno = 0;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const int error = errno;
  if (text.empty() || *end != '\0') return concat("'", text, "' is not a number");
  if (error == ERANGE) {
    return concat(text, std::isinf(value) ? " is too large" : " is too small", " for a number");
  }
  // without limits NaN passes: other checks refuse it
  const bool limited = std::isfinite(limits.lowest) || std::isfinite(limits.highest);
  if (!limited || (value >= limits.lowest && value <= limits.highest)) return "";
  return concat(text, " is not a number from ", limits.lowest, " to ", limits.highest);
}

CLI::Validator unit_check(double (*parse)(const std::string&)) {
  const auto refusal = [parse](std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  return {refusal, ""};
}

Settings settings_of(const CLI::App& command) {
  static const std::set<std::string> kMayDiffer = {"data",    "vocab",  "init", "loader-threads",
                                                   "json",    "svg",    "help", "transport",
                                                   "timeout", "workers"};
  Settings settings;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (kMayDiffer.contains(name)) continue;
    std::string value = option->count() == 0 ? option->get_default_str() : "";
    for (const std::string& part : option->results()) value += (value.empty() ? "" : ",") + part;
    settings.emplace_back("--" + name, value.empty() ? "not given" : value);
  }
  return settings;
}

}  // namespace pride::inline program
