// The status of a coordinator: as JSON, as Prometheus text, and as a page that reads the JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coord/events.h"
#include "serve/event_log.h"

namespace pride::app {

struct StatusFacts {
  std::string program;  // "pride 0.1.0 (abc1234)"
  std::string listen;
  bool certificates = false;
  std::int64_t certificate_until = 0;    // in seconds of Unix time; 0: no certificate
  std::vector<std::string> orders = {};  // serve/control.h
  double up_s = 0;
  double disk_free = 0;  // bytes, for the journal
};

nlohmann::ordered_json status_json(const coord::Status& status, const EventLog& log,
                                   const StatusFacts& facts);

// Metrics for Prometheus; coordinator/docs/federated.md lists the names.
std::string metrics_text(const coord::Status& status, const EventLog& log,
                         const StatusFacts& facts);

// The page, equal for all coordinators: it has script and style and fetches /status.json.
std::string status_page();

// Texts of files that are compiled into the program.
extern const char* const kStatusHtml;
extern const char* const kStatusJs;
extern const char* const kStatusCss;

}  // namespace pride::app
