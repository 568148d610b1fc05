// `pride serve` and `pride journal`: command line of a coordinator.
// SPDX-License-Identifier: Apache-2.0

#include "commands.h"
#include "flag_values.h"
#include "serve/options.h"

namespace pride::app {
namespace {

constexpr double kDay = 86'400;

void add_addresses(CLI::App& command, ServeOptions& options) {
  add_value(command, "--dir", options.dir,
            "Folder of the journal, made where it is not there: a coordinator that was killed goes "
            "on from it. Orders in a run (a longer run, its last round, another quorum, a worker "
            "to eject) are lines of control.txt in it: docs/federated.md")
      ->required();
  add_value(
      command, "--listen", options.listen,
      "HOST:PORT for workers; port 0 is any that is free, 0.0.0.0 all addresses of IPv4, [::] "
      "all. Other machines can call only with --certificates");
  add_value(command, "--certificates,--certs", options.certs,
            "Folder with ca.pem, cert.pem, key.pem and revoked.txt, as `pride certs server` makes "
            "it; default: no TLS, this machine only");
  add_value(command, "--http", options.http,
            "HOST:PORT of the status page, of /status.json and of /metrics, without a password; "
            "default: none");
}

void add_rounds(CLI::App& command, ServeOptions& options) {
  add_value(command, "--min-workers", options.min_workers,
            "Voters without whom no round closes, whatever the quorum", {1, 1e6});
  add_value(command, "--quorum", options.quorum,
            "Voters below whom no round closes, and after whom it closes at the end of the grace "
            "window (default: --quorum-share of the live workers)",
            {1, 1e6});
  add_value(command, "--quorum-share", options.quorum_share,
            "Share of the live workers, rounded up, that is a quorum", {0.01, 1});
  add_value(command, "--grace", options.grace_s,
            "Seconds that a round waits for others after its quorum (default: 1.25 times the 95th "
            "percentile of recent arrivals)",
            {0, kDay});
  add_value(command, "--most-grace", options.most_grace_s,
            "Longest grace window in seconds, where recent arrivals decide", {0.05, kDay});
  add_value(command, "--dead-after", options.dead_after_s,
            "Seconds without a call after which a worker is not waited for", {1, kDay});
}

void add_votes(CLI::App& command, ServeOptions& options) {
  add_value(command, "--weights", options.weights,
            "Votes of a worker: equal; samples, what the worker says when it joins; learned, from "
            "how often its signs agree with the others'")
      ->check(CLI::IsMember({"equal", "samples", "learned"}));
  add_value(command, "--most-weight", options.most_weight,
            "Most votes of one worker (default: 65535 with --weights samples, else 2)", {1, 65535});
  command.add_flag("--odd", options.odd,
                   "Leave out the last of an even number of equal voters, so that there are no "
                   "ties");
}

void add_kept(CLI::App& command, ServeOptions& options) {
  add_value(command, "--parameters-every", options.parameters_every,
            "Ask a worker for the parameters after so many rounds, for workers that come later; 0: "
            "those of the beginning only",
            {0, 1e15});
  command.add_flag("--shadow", options.shadow,
                   "Apply the records here, too, so that no worker is asked for parameters");
  add_value(command, "--keep", options.keep,
            "Records: all, or recent ones, since the older of the newest two parameters")
      ->check(CLI::IsMember({"all", "recent"}));
  add_value(command, "--max-workers", options.max_workers, "Registrations in all", {1, 65535});
  add_value(command, "--calls-per-second", options.calls_per_second,
            "Calls of one worker, in the long run", {1, 1e6});
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
                   "Apply all records to the oldest parameters, and print the hash at the end");
  command.add_option("--repair", options.repair,
                     "Copy what is good of a damaged journal into this new folder, and say what "
                     "was left out");
}

}  // namespace pride::app
