// `pride certs`: command line of a project's certificates.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "commands.h"
#include "program/flag_values.h"
#include "program/program.h"
#include "serve/options.h"

namespace pride::app {
namespace {

using Run = void (*)(const CertsOptions&);

struct Subcommand {
  CLI::App& command;
  std::shared_ptr<CertsOptions> options;
};

Subcommand add(CLI::App& certs, const char* name, const char* about, Run run) {
  CLI::App& command = *certs.add_subcommand(name, about);
  const auto options = std::make_shared<CertsOptions>();
  command.add_option("dir", options->dir, "Folder of the project's CA")->required();
  command.callback([options, run] { run(*options); });
  return {command, options};
}

void add_days(const Subcommand& sub, int days) {
  sub.options->days = days;
  add_value(sub.command, "--days", sub.options->days, "Days of validity", {1, 36'500});
}

}  // namespace

void add_certs(CLI::App& command) {
  command.require_subcommand(1);
  const Subcommand init =
      add(command, "init", "Make the CA. Whoever has its key can add workers", certs_init);
  add_value(init.command, "--project", init.options->project, "Name of the project in the CA");
  add_days(init, 3650);
  const Subcommand server =
      add(command, "server", "Make the coordinator's certificate, in DIR/server", certs_server);
  add_value(server.command, "--name", server.options->names,
            "Host names and addresses under which workers connect")
      ->required();
  add_days(server, 365);
  server.command.add_flag("--overwrite", server.options->overwrite,
                          "Replace the existing certificate");
  const Subcommand worker = add(
      command, "worker", "Make the certificate of one worker, in DIR/workers/NAME", certs_worker);
  worker.command
      .add_option("name", worker.options->name, "Name of the worker: one name has one vote")
      ->required();
  add_days(worker, 365);
  const Subcommand revoke =
      add(command, "revoke", "Revoke certificates, from the next call on", certs_revoke);
  revoke.command
      .add_option("name", revoke.options->name,
                  "Name of a worker, any name of a server, or a serial")
      ->required();
  const Subcommand list = add(command, "list", "List the certificates of a CA", certs_list);
  list.command.add_flag("--json", list.options->json, "Print JSON");
}

}  // namespace pride::app
