// Options of the coordinator's commands, and the functions that run them, in the program
// pride-coordinator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pride::app {

struct ServeOptions {
  std::string listen = "127.0.0.1:4770";
  std::string dir;    // folder of the journal
  std::string certs;  // folder of `pride certs server`
  std::string http;   // address of the status page; empty: none
  int min_workers = 1;
  std::optional<int> quorum;
  double quorum_share = 0.5;
  std::optional<double> grace_s;
  double most_grace_s = 30, dead_after_s = 15;
  std::string weights = "equal";
  std::optional<int> most_weight;
  bool odd = false, shadow = false;
  std::int64_t parameters_every = 100;
  std::string keep = "all";
  int max_workers = 1024;
  double calls_per_second = 2000;
  bool json = false;
};

struct JournalOptions {
  std::string dir;
  bool replay = false;
  std::string repair;  // a new folder; empty: none
};

struct CertsOptions {
  std::string dir, project = "pride", name;
  std::vector<std::string> names;  // host names and addresses of the server
  int days = 365;
  bool overwrite = false;  // replace the server's certificate
  bool json = false;
};

void serve(const ServeOptions& options);
void verify_journal(const JournalOptions& options);
void repair_journal(const JournalOptions& options);
void certs_init(const CertsOptions& options);
void certs_server(const CertsOptions& options);
void certs_worker(const CertsOptions& options);
void certs_revoke(const CertsOptions& options);
void certs_list(const CertsOptions& options);

}  // namespace pride::app
