// `pride serve`: a coordinator, its server, its log and its status page, until a signal.
// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>

#include "coord/certificates/certificate_files.h"
#include "coord/coordinator.h"
#include "coord/journal.h"
#include "coord/rpc/address.h"
#include "coord/rpc/server.h"
#include "coord/work_pool.h"
#include "pride/error.h"
#include "pride/serving.h"
#include "program/build_info.h"
#include "serve/control.h"
#include "serve/event_log.h"
#include "serve/http.h"
#include "serve/options.h"
#include "serve/status_page.h"

namespace pride::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLogFile = "coordinator.jsonl";

coord::Weighting weighting_of(const std::string& name) {
  if (name == "samples") return coord::Weighting::kGiven;
  return name == "learned" ? coord::Weighting::kLearned : coord::Weighting::kEqual;
}

coord::CoordinatorOptions coordinator_options(const ServeOptions& options) {
  coord::CoordinatorOptions out;
  out.folder = options.dir;
  out.quorum.min_workers = options.min_workers;
  out.quorum.count = options.quorum;
  out.quorum.share = options.quorum_share;
  if (options.grace_s) out.quorum.grace = coord::Seconds(*options.grace_s);
  out.quorum.most_grace = coord::Seconds(options.most_grace_s);
  out.quorum.odd = options.odd;
  out.weighting = weighting_of(options.weights);
  out.most_weight = options.most_weight;
  out.dead_after = coord::Seconds(options.dead_after_s);
  // a worker stays alive if three heartbeats are lost
  const double beat_ms = std::clamp(options.dead_after_s * 1000 / 5, 100.0, 3000.0);
  out.heartbeat_ms = static_cast<std::uint32_t>(beat_ms);
  out.max_workers = options.max_workers;
  out.parameters_every = options.parameters_every;
  out.shadow = options.shadow;
  out.retain_all = options.keep == "all";
  return out;
}

coord::ServerOptions server_options(const ServeOptions& options, EventLog& log) {
  coord::ServerOptions out;
  out.listen = options.listen;
  if (!options.certs.empty()) out.certificates = options.certs;
  out.connections.all = std::max(out.connections.all, 2 * options.max_workers);
  out.limits.per_second = options.calls_per_second;
  out.limits.burst = 5 * options.calls_per_second;
  out.on_warning = [&log](const std::string& what) { log.on_warning(what); };
  out.on_refused = [&log](const coord::Refused& refused) { log.on_connection_refused(refused); };
  return out;
}

volatile std::sig_atomic_t asked_to_stop = 0;

// Blocks SIGINT and SIGTERM until wait_for_signal(), in this thread and in threads that it starts.
// The handler is for library threads that exist already (OpenBLAS's) and may receive the signals.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM}) {
    sigaddset(&signals, number);
    if (std::signal(number, [](int) { asked_to_stop = 1; }) == SIG_IGN) {
      std::signal(number, SIG_IGN);
    }
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Calls `look` five times a second until a signal arrives. Throws if the coordinator fails.
void wait_for_signal(const sigset_t& signals, const EventLog& log,
                     const std::function<void()>& look) {
  const timespec moment{.tv_sec = 0, .tv_nsec = 200'000'000};
  while (asked_to_stop == 0 && sigtimedwait(&signals, nullptr, &moment) < 0) {
    look();
    if (const std::string why = log.failed(); !why.empty()) throw Error(why);
  }
}

// Lets a second signal end the process at once: work in progress may take long. The journal is
// always complete, so the exit code is 0.
void leave_at_the_next_signal(const sigset_t& signals) {
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, [](int) { _exit(0); });
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// Connections take two descriptors each, and the soft limit is often 1024.
void raise_descriptor_limit() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

// Logs the expiry and the replacement of the server's certificate.
class OwnCertificate {
 public:
  OwnCertificate(const ServeOptions& options, EventLog& log) : folder_(options.certs), log_(log) {
    if (!folder_.empty()) read();
  }
  std::int64_t until() const { return until_; }

  void look() {
    if (folder_.empty() || Clock::now() - looked_ < kLookEvery) return;
    looked_ = Clock::now();
    std::error_code gone;
    if (const auto time = std::filesystem::last_write_time(folder_ / coord::kCertFile, gone);
        !gone && time != changed_) {
      try {
        read();
        log_.note("certificate", {{"until", until()}}, "the server's certificate was replaced");
      } catch (const Error& error) {
        changed_ = time;
        log_.on_warning(error.what());
      }
    } else if (looked_ - warned_ >= std::chrono::hours(24) || is_over() != was_over_) {
      warn();
    }
  }

 private:
  static constexpr std::chrono::seconds kLookEvery{5};

  void read() {
    const coord::CertificateFiles files = coord::read_certificate_files(folder_);
    changed_ = std::filesystem::last_write_time(folder_ / coord::kCertFile);
    coord::check_is_of_server(files, folder_);
    until_ = coord::expiry_of(files);
    warn();
  }
  bool is_over() const { return until_ < std::time(nullptr); }
  void warn() {
    was_over_ = is_over();
    warned_ = Clock::now();
    log_.warn_of_expiry("the certificate of the server, or its CA,", until_);
  }

  const std::filesystem::path folder_;
  EventLog& log_;
  std::filesystem::file_time_type changed_;
  Clock::time_point looked_ = Clock::now(), warned_;
  std::atomic<std::int64_t> until_ = 0;
  bool was_over_ = false;
};

std::string listen_text(const ServeOptions& options, int port) {
  return options.listen.substr(0, options.listen.rfind(':') + 1) + std::to_string(port);
}

// The coordinator, and the thread for its slow work, which ends before the coordinator does.
class Run {
 public:
  Run(const ServeOptions& options, EventLog& log)
      : work_(std::make_unique<coord::WorkPool>(1)),
        coordinator_(
            coordinator_options(options), make_serving,
            [this](std::function<void()> task) { work_->add(std::move(task)); }, log,
            Clock::now()) {}
  ~Run() { work_.reset(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  coord::Coordinator& coordinator() { return coordinator_; }

 private:
  std::unique_ptr<coord::WorkPool> work_;
  coord::Coordinator coordinator_;
};

std::unique_ptr<HttpServer> status_server(const ServeOptions& options, const StatusFacts& facts,
                                          const OwnCertificate& certificate, const Control& control,
                                          const coord::Coordinator& coordinator, EventLog& log) {
  if (options.http.empty()) return nullptr;
  if (!coord::is_loopback(coord::parse_host_port(options.http, "--http").host)) {
    log.on_warning(
        concat("--http ", options.http,
               ": everyone who reaches this address can read the page; there is no password"));
  }
  const auto now = [facts, &certificate, &control, dir = options.dir, began = Clock::now()] {
    StatusFacts current = facts;
    current.certificate_until = certificate.until();
    current.orders = control.lines();
    std::error_code unknown;
    current.disk_free = static_cast<double>(std::filesystem::space(dir, unknown).available);
    current.up_s = std::chrono::duration<double>(Clock::now() - began).count();
    return current;
  };
  return std::make_unique<HttpServer>(
      options.http,
      Pages{.json =
                [&coordinator, &log, now] {
                  const auto json = status_json(coordinator.status(Clock::now()), log, now());
                  return json.dump(-1, ' ', false, EventLog::Json::error_handler_t::replace);
                },
            .metrics = [&coordinator, &log,
                        now] { return metrics_text(coordinator.status(Clock::now()), log, now()); },
            .page = status_page()});
}

}  // namespace

void serve(const ServeOptions& options) {
  coord::parse_host_port(options.listen, "--listen");
  if (!options.http.empty()) coord::parse_host_port(options.http, "--http");
  raise_descriptor_limit();
  const sigset_t signals = block_signals();
  coord::check_is_no_other_folder(options.dir);
  std::filesystem::create_directories(options.dir);
  EventLog log(std::filesystem::path(options.dir) / kLogFile, options.json);
  Run run(options, log);
  Control control(options.dir, run.coordinator(), log);
  OwnCertificate certificate(options, log);
  coord::Server server(server_options(options, log), run.coordinator());
  const std::string commit = kGitDescribe;
  const StatusFacts facts{
      .program = concat("pride ", kVersion, commit.empty() ? "" : " (" + commit + ")"),
      .listen = listen_text(options, server.port()),
      .certificates = !options.certs.empty()};
  if (options.quorum && options.min_workers > *options.quorum) {
    log.on_warning(concat("--min-workers ", options.min_workers, " is above --quorum ",
                          *options.quorum, ": no round closes with fewer than ",
                          options.min_workers, " voters"));
  }
  const auto http = status_server(options, facts, certificate, control, run.coordinator(), log);
  const std::int64_t open_round = run.coordinator().status(Clock::now()).open_round;
  log.note("ready",
           {{"listen", facts.listen},
            {"http", http ? http->address() : ""},
            {"dir", options.dir},
            {"open_round", open_round}},
           concat("ready: ", facts.listen, ", journal ", options.dir, ", round ", open_round,
                  http ? ", status " + http->address() : ""));
  wait_for_signal(signals, log, [&] {
    certificate.look();
    control.look();
  });
  leave_at_the_next_signal(signals);
  server.stop();
  const std::int64_t reached = run.coordinator().status(Clock::now()).open_round;
  log.note("stopped", {{"open_round", reached}},
           concat("stopped before round ", reached, "; the same command continues from there"));
}

}  // namespace pride::app
