// SPDX-License-Identifier: Apache-2.0
#include "serve/event_log.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <system_error>
#include <utility>

#include "pride/error.h"
#include "program/hex.h"
#include "program/json.h"
#include "program/table.h"

namespace pride::app {
namespace {

using namespace std::chrono_literals;
using Json = EventLog::Json;

// True if the last line is incomplete, after a full disk or a kill.
bool ends_in_a_torn_line(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return false;
  in.seekg(-1, std::ios::end);
  return in.get() != '\n';
}

constexpr std::int64_t kWarnDays = 30;
constexpr std::size_t kNewest = 50;        // refusals on the status page
constexpr std::size_t kMostSeen = 4096;    // remembered pairs of a kind of refusal and a caller
constexpr std::size_t kLongestText = 500;  // bytes of a text from a caller

std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t second = std::chrono::system_clock::to_time_t(now);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  std::tm parts{};
  gmtime_r(&second, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  const std::string digits = std::to_string(1000 + ms.count() % 1000);
  return concat(text.data(), ".", digits.substr(1), "Z");
}

Json voters_of(const coord::RoundReport& report) {
  Json voters = Json::array();
  for (const coord::VoterReport& voter : report.voters) {
    voters.push_back({{"name", voter.name},
                      {"weight", voter.weight},
                      {"waited_s", voter.waited.count()},
                      {"agreement", or_null(voter.agreement)},
                      {"loss", or_null(voter.loss)}});
  }
  return voters;
}

std::string who(const std::string& worker, const std::string& address) {
  if (worker.empty()) return address.empty() ? "an unknown peer" : address;
  return address.empty() ? worker : concat(worker, " (", address, ")");
}

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

std::string kind_of_refusal(const std::string& why) {
  struct Kind {
    const char* part;
    const char* name;
  };
  constexpr std::array kKinds = {Kind{"handshake failed", "handshake"},
                                 Kind{"too many connections", "connections"},
                                 Kind{"no accepted call", "no_call"},
                                 Kind{"no certificate", "no_certificate"},
                                 Kind{"has been revoked", "revoked"},
                                 Kind{"has expired", "expired"},
                                 Kind{"is not valid before", "not_yet_valid"},
                                 Kind{"certificate", "certificate"},
                                 Kind{"oversized", "oversized"},
                                 Kind{"malformed", "malformed"},
                                 Kind{"cancelled", "cancelled"},
                                 Kind{"flood", "flood"},
                                 Kind{"slow reader", "slow_reader"},
                                 Kind{"belongs to", "other_owner"},
                                 Kind{"register again", "unknown_session"}};
  const auto found = std::ranges::find_if(
      kKinds, [&](const Kind& kind) { return why.find(kind.part) != why.npos; });
  return found == kKinds.end() ? "other" : found->name;
}

EventLog::EventLog(std::filesystem::path file, bool json_to_stdout, std::uintmax_t most_bytes)
    : file_(std::move(file)), json_to_stdout_(json_to_stdout), most_bytes_(most_bytes) {
  begin_file();
}

void EventLog::begin_file() {
  errno = 0;
  out_.open(file_, std::ios::binary | std::ios::app);
  std::error_code none;
  bytes_ = std::filesystem::file_size(file_, none);
  if (ends_in_a_torn_line(file_)) out_ << '\n';
  if (out_) return;
  throw DataError(
      concat("cannot write ", file_.string(), ": ", std::generic_category().message(errno)));
}

// A log that cannot be written (a full disk) does not end the run; such a journal does.
void EventLog::write(const std::string& event, Json fields, const std::string& text) {
  Json line = {{"time", now_text()}, {"event", event}};
  line.update(fields);
  // names and texts of callers may not be UTF-8
  const std::string json = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (bytes_ > most_bytes_) {
    out_.close();
    std::error_code none;
    std::filesystem::rename(file_, file_.string() + ".1", none);
    begin_file();
  }
  out_ << json << std::flush;
  bytes_ += json.size();
  if (json_to_stdout_) {
    output_.add(json);
  } else if (!text.empty()) {
    output_.add(text + "\n");
  }
}

void EventLog::note(const std::string& event, Json fields, const std::string& text) {
  const std::lock_guard lock(mutex_);
  write(event, std::move(fields), text);
}

void EventLog::on_round(const coord::RoundReport& report) {
  const Json fields = {{"round", report.round},
                       {"step", report.step},
                       {"params_hash", hex16(report.params_hash)},
                       {"voters", voters_of(report)},
                       {"left_out", report.left_out},
                       {"missing", report.missing},
                       {"by_quorum", report.by_quorum},
                       {"open_s", report.open.count()},
                       {"grace_s", report.grace.count()},
                       {"served_s", report.served.count()},
                       {"record_bytes", report.record_bytes},
                       {"loss", or_null(report.loss)}};
  const std::lock_guard lock(mutex_);
  ++rounds_;
  std::string text;
  if (const auto now = Clock::now(); now - round_shown_ >= 1s) {
    round_shown_ = now;
    text = concat("round ", report.round, ": ", report.voters.size(), " voters, ",
                  decimals(report.open.count(), 3), " s");
    if (!report.missing.empty()) text += concat(", ", report.missing.size(), " missing");
    if (report.loss) text += ", loss " + decimals(*report.loss, 4);
  }
  write("round", fields, text);
}

void EventLog::on_joined(int number, const std::string& name, const coord::Peer& peer,
                         bool new_name) {
  note("joined", {{"number", number}, {"name", name}, {"address", peer.address}, {"new", new_name}},
       concat("worker ", name, new_name ? " joined" : " is back", ", from ", peer.address));
  warn_of_expiry("the certificate of worker " + name, peer.certificate_until);
}

void EventLog::on_lost(int number, const std::string& name, const std::string& why) {
  note("lost", {{"number", number}, {"name", name}, {"why", why}},
       concat("worker ", name, " is lost: ", why));
}

void EventLog::on_left(int number, const std::string& name) {
  note("left", {{"number", number}, {"name", name}}, concat("worker ", name, " left"));
}

void EventLog::on_connection_refused(const coord::Refused& refused) {
  const std::lock_guard lock(mutex_);
  refuse(refused.call, refused.worker, refused.address, refused.why);
}

void EventLog::on_refused(const std::string& call, int, const std::string& name,
                          const coord::Peer& peer, const std::string& why) {
  const std::lock_guard lock(mutex_);
  refuse(call, name.empty() ? peer.certificate : name, peer.address, why);
}

// One line per second for each kind and caller, so that a flood cannot fill the disk.
void EventLog::refuse(const std::string& call, const std::string& worker,
                      const std::string& address, const std::string& why) {
  const std::string kind = kind_of_refusal(why);
  ++refused_[kind];
  if (seen_.size() >= kMostSeen) seen_.clear();
  const std::string key = concat(kind, "|", call, "|", worker, "|", host_of(address));
  Seen& seen = seen_[key];
  if (const auto now = Clock::now(); now - seen.written < 1s) {
    ++seen.left_out;
    return;
  } else {
    seen.written = now;
  }
  const std::string shown = why.substr(0, kLongestText), name = worker.substr(0, kLongestText);
  newest_.push_front({now_text(), call, name, address, shown});
  if (newest_.size() > kNewest) newest_.pop_back();
  write("refused",
        {{"call", call},
         {"worker", name},
         {"address", address},
         {"kind", kind},
         {"why", shown},
         {"same_before", std::exchange(seen.left_out, 0)}},
        concat("refused ", who(name, address), ", ", call, ": ", shown));
}

void EventLog::on_late(int number, const std::string& name, std::int64_t round,
                       coord::Seconds after_quorum) {
  note("late",
       {{"number", number},
        {"name", name},
        {"round", round},
        {"after_quorum_s", after_quorum.count()}},
       "");
}

void EventLog::on_parameters(std::int64_t before_round, std::uint64_t hash,
                             const std::string& from) {
  note("parameters", {{"before_round", before_round}, {"hash", hex16(hash)}, {"from", from}},
       concat("parameters before round ", before_round, ", from ", from));
}

void EventLog::on_journal(const std::string& note) {
  this->note("journal", {{"note", note}}, note);
}

void EventLog::on_warning(const std::string& what) {
  note("warning", {{"what", what}}, "warning: " + what);
}

void EventLog::warn_of_expiry(const std::string& what, std::int64_t until) {
  const std::int64_t left = until - std::time(nullptr);
  if (until == 0 || left > kWarnDays * 86'400) return;
  if (left <= 0) return on_warning(what + " has expired");
  const bool days = left >= 2 * 86'400;
  const std::int64_t number = days ? left / 86'400 : (left + 3599) / 3600;
  on_warning(concat(what, " expires in ", number,
                    days         ? " days"
                    : number > 1 ? " hours"
                                 : " hour"));
}

void EventLog::on_failed(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failed_ = why;
  write("failed", {{"why", why}}, "");
}

std::map<std::string, std::uint64_t> EventLog::refusals_by_kind() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

std::vector<Refusal> EventLog::newest_refusals() const {
  const std::lock_guard lock(mutex_);
  return {newest_.begin(), newest_.end()};
}

std::uint64_t EventLog::rounds() const {
  const std::lock_guard lock(mutex_);
  return rounds_;
}

std::string EventLog::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace pride::app
