// Checks whether a worker's certificate is valid now. gRPC requests one for each connection and
// proves that the worker has its key. Chain and revocation are checked then, so that a stranger
// sends no HTTP/2. They are checked again at every call, with the dates, so that the caller sees
// the reason.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "coord/rpc/revocations.h"
#include "coord/rpc/x509.h"

namespace pride::coord {

struct Verdict {
  std::string name;       // of the worker, if the certificate can be read
  std::string refused;    // empty: it is good
  std::time_t until = 0;  // it or its CA expires; 0: refused
};

// Several threads may call.
class CertificateChecker {
 public:
  using Now = std::chrono::system_clock::time_point;

  // The server's folder: ca.pem, and revoked.txt if there is one. Throws DataError.
  explicit CertificateChecker(const std::filesystem::path& folder, OnWarning on_warning = {});

  Verdict check(const std::string& pem, Now now);

  // Why its owner may not call at all. Empty: it is of the project's CA and not revoked.
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
  std::mutex mutex_;                    // of known_
  std::map<std::string, Known> known_;  // by fingerprint
};

}  // namespace pride::coord
