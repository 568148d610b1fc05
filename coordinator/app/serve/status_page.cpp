// SPDX-License-Identifier: Apache-2.0
#include "serve/status_page.h"

#include <sstream>

#include "pride/error.h"
#include "program/hex.h"
#include "program/json.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

Json worker_json(const coord::WorkerStatus& worker) {
  return {{"number", worker.number},
          {"name", worker.name},
          {"address", worker.address},
          {"certificate_until", worker.certificate_until},
          {"live", worker.live},
          {"silent_s", worker.silent ? Json(worker.silent->count()) : Json(nullptr)},
          {"round", worker.round},
          {"ended", worker.ended},
          {"voted", worker.voted},
          {"weight", worker.weight},
          {"counted", worker.counted},
          {"late", worker.late},
          {"refused", worker.refused},
          {"bytes_in", worker.bytes_in},
          {"bytes_out", worker.bytes_out},
          {"agreement", or_null(worker.agreement)},
          {"loss", or_null(worker.loss)},
          {"warning", worker.warning}};
}

Json round_json(const coord::RoundReport& round) {
  return {{"round", round.round},
          {"step", round.step},
          {"params_hash", hex16(round.params_hash)},
          {"voters", round.voters.size()},
          {"left_out", round.left_out.size()},
          {"missing", round.missing.size()},
          {"by_quorum", round.by_quorum},
          {"open_s", round.open.count()},
          {"served_s", round.served.count()},
          {"record_bytes", round.record_bytes},
          {"loss", or_null(round.loss)}};
}

// The value of a label, quoted for Prometheus.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

class Metrics {
 public:
  void add(const char* name, const char* kind, const char* help, double value) {
    head(name, kind, help);
    out_ << name << ' ' << value << '\n';
  }
  void head(const char* name, const char* kind, const char* help) {
    out_ << "# HELP " << name << ' ' << help << "\n# TYPE " << name << ' ' << kind << '\n';
  }
  void row(const char* name, const char* label, const std::string& of, double value) {
    out_ << name << '{' << label << '=' << quoted(of) << "} " << value << '\n';
  }
  template <typename Value>
  void of_workers(const coord::Status& status, const char* name, const char* kind, const char* help,
                  Value value) {
    head(name, kind, help);
    for (const coord::WorkerStatus& worker : status.workers) {
      row(name, "worker", worker.name, static_cast<double>(value(worker)));
    }
  }
  std::string text() const { return out_.str(); }
  Metrics() { out_.precision(15); }

 private:
  std::ostringstream out_;
};

void add_run(Metrics& metrics, const coord::Status& status, const EventLog& log,
             const StatusFacts& facts) {
  const auto count = [](std::uint64_t n) { return static_cast<double>(n); };
  metrics.add("pride_up_seconds", "gauge", "Seconds since the start.", facts.up_s);
  metrics.add("pride_open_round", "gauge", "The round that workers vote on.",
              static_cast<double>(status.open_round));
  metrics.add("pride_voters_in", "gauge", "Ballots of the open round with the same parameters.",
              status.voters_in);
  metrics.add("pride_voters_needed", "gauge", "Votes the open round needs; 0 at the end.",
              status.at_end.empty() ? status.least_voters : 0);
  metrics.add("pride_rounds_total", "counter", "Rounds closed since the start.",
              count(log.rounds()));
  metrics.add("pride_serving", "gauge", "0 once the coordinator has failed.",
              status.failed.empty() ? 1 : 0);
  metrics.add("pride_ballots_counted_total", "counter", "Ballots counted since the start.",
              count(status.ballots_counted));
  metrics.add("pride_ballots_late_total", "counter", "Ballots after their round had closed.",
              count(status.ballots_late));
  metrics.add("pride_ballots_refused_total", "counter", "Ballots refused.",
              count(status.ballots_refused));
  metrics.add("pride_bytes_in_total", "counter", "Bytes of messages from workers.",
              count(status.bytes_in));
  metrics.add("pride_bytes_out_total", "counter", "Bytes of messages to workers.",
              count(status.bytes_out));
  metrics.add("pride_journal_bytes", "gauge", "Bytes of the journal's files.",
              count(status.journal_bytes));
  metrics.add("pride_disk_free_bytes", "gauge", "Free bytes on the journal's disk.",
              facts.disk_free);
  metrics.add("pride_grace_seconds", "gauge", "Grace window after a quorum.", status.grace.count());
  metrics.head("pride_certificate_expires", "gauge", "Unix time; of is server or a worker's name.");
  if (facts.certificate_until != 0) {
    metrics.row("pride_certificate_expires", "of", "server",
                static_cast<double>(facts.certificate_until));
  }
  for (const coord::WorkerStatus& worker : status.workers) {
    if (worker.certificate_until == 0) continue;
    metrics.row("pride_certificate_expires", "of", "worker " + worker.name,
                static_cast<double>(worker.certificate_until));
  }
  metrics.head("pride_refused_total", "counter", "Calls and connections refused, by kind.");
  for (const auto& [kind, n] : log.refusals_by_kind()) {
    metrics.row("pride_refused_total", "kind", kind, count(n));
  }
  if (status.rounds.empty()) return;
  const coord::RoundReport& last = status.rounds.back();
  metrics.add("pride_round_seconds", "gauge", "Seconds of the last round, from its first ballot.",
              last.open.count());
  metrics.add("pride_round_voters", "gauge", "Voters of the last round.",
              count(last.voters.size()));
  if (last.loss)
    metrics.add("pride_loss", "gauge", "Mean loss of the last round's voters.", *last.loss);
}

void add_workers(Metrics& metrics, const coord::Status& status) {
  using Worker = coord::WorkerStatus;
  metrics.of_workers(status, "pride_worker_live", "gauge", "1 if it has called recently.",
                     [](const Worker& w) { return w.live ? 1 : 0; });
  metrics.of_workers(status, "pride_worker_ballots_counted_total", "counter", "Ballots counted.",
                     [](const Worker& w) { return w.counted; });
  metrics.of_workers(status, "pride_worker_ballots_late_total", "counter",
                     "Ballots after their round had closed.",
                     [](const Worker& w) { return w.late; });
  metrics.of_workers(status, "pride_worker_weight", "gauge", "Votes of the worker.",
                     [](const Worker& w) { return w.weight; });
  metrics.of_workers(status, "pride_worker_bytes_in_total", "counter", "Bytes from the worker.",
                     [](const Worker& w) { return w.bytes_in; });
  metrics.of_workers(status, "pride_worker_bytes_out_total", "counter", "Bytes to it.",
                     [](const Worker& w) { return w.bytes_out; });
}

}  // namespace

Json status_json(const coord::Status& status, const EventLog& log, const StatusFacts& facts) {
  Json json = {{"program", facts.program},
               {"listen", facts.listen},
               {"certificates", facts.certificates},
               {"certificate_until", facts.certificate_until},
               {"up_s", facts.up_s},
               {"disk_free", facts.disk_free},
               {"method", status.method},
               {"coordinates", status.coordinates},
               {"open_round", status.open_round},
               {"steps_done", status.steps_done},
               {"last_step", status.last_step},
               {"at_end", status.at_end},
               {"orders", facts.orders},
               {"first_record", status.first_record},
               {"parameters_round", status.parameters_round},
               {"voters_in", status.voters_in},
               {"least_voters", status.least_voters},
               {"few_voters", status.few_voters},
               {"rounds_since_start", log.rounds()},
               {"grace_s", status.grace.count()},
               {"failed", status.failed},
               {"ballots_counted", status.ballots_counted},
               {"ballots_late", status.ballots_late},
               {"ballots_refused", status.ballots_refused},
               {"calls_refused", status.calls_refused},
               {"bytes_in", status.bytes_in},
               {"bytes_out", status.bytes_out},
               {"journal_bytes", status.journal_bytes},
               {"workers", Json::array()},
               {"rounds", Json::array()},
               {"refusals", Json::array()}};
  for (const auto& worker : status.workers) json["workers"].push_back(worker_json(worker));
  for (const auto& round : status.rounds) json["rounds"].push_back(round_json(round));
  for (const Refusal& one : log.newest_refusals()) {
    json["refusals"].push_back({{"time", one.time},
                                {"call", one.call},
                                {"worker", one.worker},
                                {"address", one.address},
                                {"why", one.why}});
  }
  json["refused"] = log.refusals_by_kind();
  return json;
}

std::string metrics_text(const coord::Status& status, const EventLog& log,
                         const StatusFacts& facts) {
  Metrics metrics;
  add_run(metrics, status, log, facts);
  add_workers(metrics, status);
  return metrics.text();
}

std::string status_page() {
  return concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>pride serve</title>\n<style>\n",
      kStatusCss, "</style>\n</head>\n<body>\n", kStatusHtml, "<script>\n", kStatusJs,
      "</script>\n</body>\n</html>\n");
}

}  // namespace pride::app
