// control.txt in the journal's folder: an operator's orders for a running `pride serve`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coord/coordinator.h"
#include "serve/event_log.h"

namespace pride::app {

inline constexpr const char* kControlFile = "control.txt";

// Reads one order per line: "steps N", "finish ROUND", "quorum N", "min-workers N", "eject NAME";
// '#' begins a comment. The last order of a kind is valid; all of eject are. Throws DataError,
// naming the line, on any other line.
coord::Orders parse_orders(const std::filesystem::path& file);

// Applies the orders of the file, which are valid as long as the file has them.
class Control {
 public:
  // Throws Error if the file exists and is invalid.
  Control(const std::filesystem::path& folder, coord::Coordinator& coordinator, EventLog& log);

  // Reads the file a second after its last change. If the file is invalid, logs a warning and
  // changes nothing. A removed file changes nothing.
  void look();

  std::vector<std::string> lines() const;  // the valid orders, for the status page

 private:
  using Clock = std::chrono::steady_clock;
  using Stamp = std::pair<std::filesystem::file_time_type, std::uintmax_t>;

  Stamp stamp() const;  // Stamp{}: there is no file
  void read();

  const std::filesystem::path file_;
  coord::Coordinator& coordinator_;
  EventLog& log_;
  Clock::time_point looked_ = Clock::now();
  Stamp seen_{}, read_{};
  bool ended_ = false;  // the log has the end of the run
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

}  // namespace pride::app
