// `pride serve` and `pride journal`: command line of a coordinator.
// SPDX-License-Identifier: Apache-2.0

#include "commands.h"
#include "program/flag_values.h"
#include "program/program.h"
#include "serve/options.h"

namespace pride::app {
namespace {

constexpr double kDay = 86'400;

void add_addresses(CLI::App& command, ServeOptions& options) {
  add_value(command, "--dir", options.dir,
            "Folder of the journal, created if missing; a restarted coordinator continues from it. "
            "Orders in a run (a longer run, its last round, another quorum, a worker to eject) are "
            "lines of control.txt in it: coordinator/docs/federated.md")
      ->required();
  add_value(command, "--listen", options.listen,
            "HOST:PORT for workers; port 0 is any free port, 0.0.0.0 all addresses of IPv4, [::] "
            "all. Other machines can connect only with --certificates");
  add_value(command, "--certificates,--certs", options.certs,
            "Folder with ca.pem, cert.pem, key.pem and revoked.txt, as `pride certs server` makes "
            "it; default: no TLS, this machine only");
  add_value(command, "--http", options.http,
            "HOST:PORT for the status page, /status.json and /metrics, without a password; "
            "default: none");
}

void add_rounds(CLI::App& command, ServeOptions& options) {
  add_value(command, "--min-workers", options.min_workers,
            "Minimum votes for a round to close, whatever the quorum", {1, 1e6});
  add_value(command, "--quorum", options.quorum,
            "Votes that a round needs; with them it closes after the grace window (default: "
            "--quorum-share of the live workers)",
            {1, 1e6});
  add_value(command, "--quorum-share", options.quorum_share,
            "Share of the live workers, rounded up, that makes a quorum", {0.01, 1});
  add_value(command, "--grace", options.grace_s,
            "Seconds that a round waits for others after its quorum (default: 1.25 times the 95th "
            "percentile of recent arrivals)",
            {0, kDay});
  add_value(command, "--most-grace", options.most_grace_s,
            "Maximum grace window in seconds, if recent arrivals decide", {0.05, kDay});
  add_value(command, "--dead-after", options.dead_after_s,
            "Seconds without a call after which a worker is not waited for", {1, kDay});
}

void add_votes(CLI::App& command, ServeOptions& options) {
  add_value(command, "--weights", options.weights,
            "Votes of a worker: equal; samples: sent by the worker when it joins; learned: from "
            "how often its signs agree with the others'")
      ->check(CLI::IsMember({"equal", "samples", "learned"}));
  add_value(command, "--most-weight", options.most_weight,
            "Maximum votes of one worker (default: 65535 with --weights samples, otherwise 2)",
            {1, 65535});
  command.add_flag("--odd", options.odd,
                   "Leave out the last of an even number of equal voters, to avoid ties");
}

void add_kept(CLI::App& command, ServeOptions& options) {
  add_value(command, "--parameters-every", options.parameters_every,
            "Rounds between requests for a worker's parameters, for workers that join later; 0: "
            "only the initial ones",
            {0, 1e15});
  command.add_flag(
      "--shadow", options.shadow,
      "Apply the records in the coordinator, so that no worker has to send parameters");
  add_value(command, "--keep", options.keep,
            "Records to keep: all, or recent: since the older of the two newest parameters")
      ->check(CLI::IsMember({"all", "recent"}));
  add_value(command, "--max-workers", options.max_workers, "Maximum number of registrations",
            {1, 65535});
  add_value(command, "--calls-per-second", options.calls_per_second,
            "Calls per second of one worker, on average", {1, 1e6});
  command.add_flag("--json", options.json, "Print events as JSON lines instead of text");
}

}  // namespace

void add_serve(CLI::App& command) {
  ServeOptions& options = arguments_of<ServeOptions>(command, [](auto& o) { serve(o); });
  add_addresses(command, options);
  add_rounds(command, options);
  add_votes(command, options);
  add_kept(command, options);
}

void add_journal(CLI::App& command) {
  JournalOptions& options =
      arguments_of<JournalOptions>(command, [](auto& o) { verify_journal(o); });
  command.add_option("dir", options.dir, "Folder of `pride serve --dir`")->required();
  command.add_flag("--replay", options.replay,
                   "Apply all records to the oldest parameters and print the final hash");
  command.add_option(
      "--repair", options.repair,
      "Copy the good parts of a damaged journal into this new folder and list the rest");
}

}  // namespace pride::app
