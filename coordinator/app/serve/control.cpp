// SPDX-License-Identifier: Apache-2.0
#include "serve/control.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>

#include "pride/error.h"

namespace pride::app {
namespace {

constexpr std::int64_t kMostVoters = 65'535, kMostSteps = std::int64_t{1} << 40;

std::optional<std::int64_t> whole_number(const std::string& text, std::int64_t least,
                                         std::int64_t most) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value);
  if (failed != std::errc() || stop != end || value < least || value > most) return {};
  return value;
}

// Adds an order to `orders`; false if it is not an order.
bool take(const std::string& what, const std::string& value, coord::Orders& orders) {
  if (what == "eject") return !value.empty() && (orders.ejected.insert(value), true);
  if (what == "steps") return (orders.steps = whole_number(value, 1, kMostSteps)).has_value();
  if (what == "finish") {
    return (orders.last_round = whole_number(value, 0, kMostSteps)).has_value();
  }
  if (what != "quorum" && what != "min-workers") return false;
  const auto voters = whole_number(value, 1, kMostVoters);
  if (voters) (what == "quorum" ? orders.quorum : orders.min_workers) = static_cast<int>(*voters);
  return voters.has_value();
}

std::vector<std::string> texts(const coord::Orders& orders) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const auto& value) {
    if (value) lines.push_back(concat(what, " ", *value));
  };
  add("steps", orders.steps);
  add("finish", orders.last_round);
  add("quorum", orders.quorum);
  add("min-workers", orders.min_workers);
  for (const std::string& name : orders.ejected) lines.push_back("eject " + name);
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += concat(all.empty() ? "" : ", ", line);
  return all.empty() ? "none" : all;
}

}  // namespace

coord::Orders parse_orders(const std::filesystem::path& file) {
  // opening a FIFO would block
  const bool readable = std::filesystem::is_regular_file(file);
  std::ifstream in(readable ? file : std::filesystem::path());
  if (!in)
    throw DataError(
        concat(file.string(), readable ? ": cannot be read" : ": is not a regular file"));
  coord::Orders orders;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    if (++number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);  // a BOM
    std::istringstream words(line.substr(0, line.find('#')));
    std::string what, value, more;
    if (!(words >> what)) continue;
    words >> value;
    if (words >> more || !take(what, value, orders)) {
      throw DataError(
          concat(file.string(), ":", number, ": not an order: '", line.substr(0, 80),
                 "'; orders are steps N, finish ROUND, quorum N, min-workers N, eject NAME"));
    }
  }
  return orders;
}

Control::Control(const std::filesystem::path& folder, coord::Coordinator& coordinator,
                 EventLog& log)
    : file_(folder / kControlFile), coordinator_(coordinator), log_(log) {
  seen_ = stamp();
  if (seen_ != Stamp{}) read();
}

Control::Stamp Control::stamp() const {
  std::error_code gone;
  const auto time = std::filesystem::last_write_time(file_, gone);
  if (gone) return {};
  const std::uintmax_t size = std::filesystem::file_size(file_, gone);
  return Stamp{time, gone ? 0 : size};  // a folder has no size
}

void Control::read() {
  read_ = seen_;
  const coord::Orders orders = parse_orders(file_);
  if (const std::string why = coordinator_.obey(orders, Clock::now()); !why.empty()) {
    throw InvalidArgument(concat(file_.string(), ": ", why));
  }
  for (const std::string& name : orders.ejected) {
    const auto workers = coordinator_.status(Clock::now()).workers;
    if (std::ranges::count(workers, name, &coord::WorkerStatus::name) > 0) continue;
    log_.on_warning(concat("control.txt: eject ", name, ": no worker of this name has joined yet"));
  }
  const std::vector<std::string> lines = texts(orders);
  log_.note("control", {{"orders", lines}}, "control.txt: orders are " + joined(lines));
  const std::lock_guard lock(mutex_);
  lines_ = lines;
}

void Control::look() {
  if (Clock::now() - looked_ < std::chrono::seconds(1)) return;
  looked_ = Clock::now();
  if (const std::string end = coordinator_.status(looked_).at_end; end.empty() == ended_) {
    ended_ = !ended_;
    if (ended_) log_.note("control", {{"end", end}}, end);
  }
  const Stamp now = stamp();
  if (std::exchange(seen_, now) != now || now == read_ || now == Stamp{}) return;
  try {
    read();
  } catch (const Error& error) {
    log_.on_warning(concat(error.what(), "; no order was changed"));
  }
}

std::vector<std::string> Control::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

}  // namespace pride::app
