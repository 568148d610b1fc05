// Checks whether a worker's certificate is valid now. In the handshake gRPC requests a certificate
// and verifies that the worker has its key. This class then checks chain and revocation, so that a
// stranger sends no HTTP/2. It checks them again at every call, with the dates, so that the caller
// sees the reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "coord/certificates/revocations.h"
#include "coord/certificates/x509.h"

namespace pride::coord {

struct Verdict {
  std::string name;       // of the worker, if the certificate can be read
  std::string refused;    // empty: it is good
  std::time_t until = 0;  // when it or its CA expires; 0: refused
};

// Several threads may call.
class CertificateChecker {
 public:
  using Now = std::chrono::system_clock::time_point;

  // The server's folder: ca.pem, and revoked.txt if there is one. Throws DataError.
  explicit CertificateChecker(const std::filesystem::path& folder, OnWarning on_warning = {});

  Verdict check(const std::string& pem, Now now);

  // Why the certificate is refused at any time. Empty: it is of the project's CA and not revoked.
  std::string stranger(const std::string& pem) { return known(pem).refused; }

 private:
  struct Known {
    std::string name = {}, serial = {}, refused = {};
    std::time_t from = 0, until = 0;
    std::string from_text = {}, until_text = {};
  };
  Known known(const std::string& pem);
  Known read(const std::string& pem) const;

  X509Ptr ca_;
  std::unique_ptr<X509_STORE, FreedBy<X509_STORE_free>> store_;
  std::time_t ca_until_ = 0;
  Revocations revocations_;
  std::mutex mutex_;                    // guards known_
  std::map<std::string, Known> known_;  // by fingerprint
};

}  // namespace pride::coord
