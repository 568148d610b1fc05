// The actions of `pride certs`.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coord/certificates/authority.h"
#include "coord/rpc/address.h"
#include "program/table.h"
#include "serve/options.h"

namespace pride::app {
namespace {

using coord::Authority;

coord::Validity days(int n) { return {.until_s = n * 86'400L}; }

}  // namespace

void certs_init(const CertsOptions& options) {
  coord::check_worker_name(options.project);
  Authority::create(options.dir, options.project, days(options.days));
  std::cout << options.dir << ": a CA. Keep ca.key secret; every certificate has ca.pem beside "
            << "it." << std::endl;
}

void certs_server(const CertsOptions& options) {
  std::cout << Authority(options.dir)
                   .issue_server(options.names, days(options.days), options.overwrite)
                   .string()
            << std::endl;
}

void certs_worker(const CertsOptions& options) {
  coord::check_worker_name(options.name);
  std::cout << Authority(options.dir).issue_worker(options.name, days(options.days)).string()
            << std::endl;
}

void certs_revoke(const CertsOptions& options) {
  for (const coord::Issued& one : Authority(options.dir).revoke(options.name)) {
    std::cout << "revoked " << one.serial << ", of " << one.kind << " " << one.name << '\n';
  }
  std::cout.flush();
}

void certs_list(const CertsOptions& options) {
  const std::vector<coord::Issued> all = Authority(options.dir).issued();
  if (options.json) {
    auto list = nlohmann::ordered_json::array();
    for (const coord::Issued& one : all) {
      list.push_back({{"serial", one.serial},
                      {"kind", one.kind},
                      {"name", one.name},
                      {"from", one.from},
                      {"until", one.until},
                      {"revoked", one.revoked}});
    }
    std::cout << list.dump(2) << std::endl;
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"name", "kind", "until", "revoked", "serial"}};
  for (const coord::Issued& one : all) {
    rows.push_back({one.name, one.kind, one.until, one.revoked ? "yes" : "", one.serial});
  }
  std::cout << markdown_table(rows, rows[0].size()) << std::flush;
}

}  // namespace pride::app
