// Events of a coordinator, as JSON lines in a file and as lines on standard output; and counts of
// refusals.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coord/events.h"
#include "coord/rpc/server.h"
#include "serve/output.h"

namespace pride::app {

// The kind of a refusal: "certificate", "handshake", "flood", ...; few enough for a metric.
std::string kind_of_refusal(const std::string& why);

struct Refusal {
  std::string time, call, worker, address, why;
};

// Several threads may call it.
class EventLog final : public coord::Observer {
 public:
  using Json = nlohmann::ordered_json;

  // Appends to the file. At `most_bytes` it becomes FILE.1, and a new one begins. Throws DataError.
  EventLog(std::filesystem::path file, bool json_to_stdout,
           std::uintmax_t most_bytes = std::uintmax_t{64} << 20);

  // Logs a warning if the expiry is within 30 days; `until` 0: never.
  void warn_of_expiry(const std::string& what, std::int64_t until);
  void note(const std::string& event, Json fields, const std::string& text);
  void on_connection_refused(const coord::Refused& refused);

  void on_round(const coord::RoundReport& report) override;
  void on_joined(int number, const std::string& name, const coord::Peer& peer,
                 bool new_name) override;
  void on_lost(int number, const std::string& name, const std::string& why) override;
  void on_left(int number, const std::string& name) override;
  void on_refused(const std::string& call, int number, const std::string& name,
                  const coord::Peer& peer, const std::string& why) override;
  void on_late(int number, const std::string& name, std::int64_t round,
               coord::Seconds after_quorum) override;
  void on_parameters(std::int64_t before_round, std::uint64_t hash,
                     const std::string& from) override;
  void on_journal(const std::string& note) override;
  void on_warning(const std::string& what) override;
  void on_failed(const std::string& why) override;

  std::map<std::string, std::uint64_t> refusals_by_kind() const;
  std::vector<Refusal> newest_refusals() const;  // newest first
  std::uint64_t rounds() const;                  // since the start
  std::string failed() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {  // one kind of refusal of one caller
    Clock::time_point written;
    std::uint64_t left_out = 0;
  };

  void refuse(const std::string& call, const std::string& worker, const std::string& address,
              const std::string& why);
  void write(const std::string& event, Json fields, const std::string& text);
  void begin_file();

  const std::filesystem::path file_;
  const bool json_to_stdout_;
  const std::uintmax_t most_bytes_;
  Output output_;
  mutable std::mutex mutex_;  // guards the members below
  std::ofstream out_;
  std::uintmax_t bytes_ = 0;
  std::map<std::string, std::uint64_t> refused_;
  std::map<std::string, Seen> seen_;
  std::deque<Refusal> newest_;
  std::uint64_t rounds_ = 0;
  Clock::time_point round_shown_{};
  std::string failed_;
};

}  // namespace pride::app
