// connect_coordinator(): the checks of an address, the name and the secret of a worker.
// SPDX-License-Identifier: Apache-2.0
#include <openssl/rand.h>

#include <filesystem>
#include <utility>

#include "coord/certificates/certificate_files.h"
#include "coord/certificates/x509.h"
#include "coord/rpc/address.h"
#include "coord/rpc/client.h"
#include "coord/run_message.h"
#include "pride/error.h"

namespace pride {
namespace coord {
namespace {

std::string name_of(const CoordinatorAddress& address) {
  if (address.certificates.empty()) return address.name;
  const CertificateFiles files = read_certificate_files(address.certificates);
  const std::string owner = common_name(*read_certificate(files.cert));
  PRIDE_CHECK(address.name.empty() || address.name == owner, "worker ", address.name,
              ": the certificate in ", address.certificates, " is for ", owner);
  return owner;
}

std::string random_secret() {
  std::string secret(kSecretBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()),
                 static_cast<int>(secret.size())) != 1) {
    throw Error("no random bytes for a worker's secret: " + openssl_error());
  }
  return secret;
}

WorkerSecret secret_of(const std::string& file) {
  if (file.empty()) {
    return {random_secret(),
            "of this process only: no file keeps it (pride train: --out OUT; Python: "
            "secret=FILE)"};
  }
  const bool is_new = !std::filesystem::exists(file);
  if (is_new) write_file(file, random_secret(), 0600);
  std::string secret = read_file(file);
  if (secret.size() != kSecretBytes) {
    throw DataError(concat(file, " is not a worker's secret: it has ", secret.size(),
                           " bytes, not ", kSecretBytes));
  }
  return {std::move(secret),
          concat("that in ", file, is_new ? ", a new one, because there was none" : "")};
}

}  // namespace
}  // namespace coord

std::shared_ptr<CoordinatorClient> connect_coordinator(const CoordinatorAddress& address) {
  const coord::HostPort there = coord::parse_host_port(address.host_port, "coordinator");
  PRIDE_CHECK(there.port > 0, "coordinator ", address.host_port, " has no port");
  PRIDE_CHECK(!address.certificates.empty() || coord::is_loopback(there.host), "coordinator ",
              address.host_port, " is another machine: certificates are needed (`pride certs`)");
  PRIDE_CHECK(address.patience.count() > 0, "coordinator ", address.host_port, ": a patience of ",
              address.patience.count(), " ms");
  const std::string name = coord::name_of(address);
  coord::check_worker_name(name);
  return std::make_shared<coord::Client>(address, name, coord::secret_of(address.secret_file));
}

}  // namespace pride
