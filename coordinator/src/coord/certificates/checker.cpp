// SPDX-License-Identifier: Apache-2.0
#include "coord/certificates/checker.h"

#include <openssl/err.h>
#include <openssl/sha.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <utility>

#include "coord/certificates/certificate_files.h"
#include "coord/refusals.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

constexpr std::size_t kMostKnown = 10'000;  // then the cache is emptied

std::string fingerprint(const std::string& pem) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(pem.data()), pem.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

// Why libcrypto rejects the chain; dates are checked later, at every call.
std::string chain_fault(X509_STORE& store, X509& certificate) {
  const std::unique_ptr<X509_STORE_CTX, FreedBy<X509_STORE_CTX_free>> context(X509_STORE_CTX_new());
  if (!context || X509_STORE_CTX_init(context.get(), &store, &certificate, nullptr) != 1) {
    return "it cannot be checked: " + openssl_error();
  }
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_NO_CHECK_TIME);
  X509_STORE_CTX_set_purpose(context.get(), X509_PURPOSE_SSL_CLIENT);
  if (X509_verify_cert(context.get()) == 1) return "";
  const int error = X509_STORE_CTX_get_error(context.get());
  ERR_clear_error();
  if (error == X509_V_ERR_INVALID_PURPOSE) return "is not a worker's";
  return concat("is not of this project's CA (", X509_verify_cert_error_string(error), ")");
}

}  // namespace

CertificateChecker::CertificateChecker(const std::filesystem::path& folder, OnWarning on_warning)
    : ca_(read_certificate(read_file(folder / kCaFile))),
      store_(X509_STORE_new()),
      revocations_(folder / kRevokedFile, std::move(on_warning)) {
  if (!ca_ || !store_ || X509_STORE_add_cert(store_.get(), ca_.get()) != 1) {
    throw DataError(concat((folder / kCaFile).string(), " is not a certificate in PEM"));
  }
  ca_until_ = seconds_of(X509_get0_notAfter(ca_.get()));
}

CertificateChecker::Known CertificateChecker::read(const std::string& pem) const {
  Known known;
  const X509Ptr certificate = read_certificate(pem);
  if (!certificate) {
    known.refused = "the certificate cannot be read";
    return known;
  }
  known.name = common_name(*certificate);
  known.serial = serial_of(*certificate);
  known.from = seconds_of(X509_get0_notBefore(certificate.get()));
  known.until = seconds_of(X509_get0_notAfter(certificate.get()));
  known.from_text = time_text(X509_get0_notBefore(certificate.get()));
  known.until_text = time_text(X509_get0_notAfter(certificate.get()));
  const std::string fault = chain_fault(*store_, *certificate);
  if (!fault.empty()) known.refused = concat("the certificate of ", known.name, " ", fault);
  return known;
}

CertificateChecker::Known CertificateChecker::known(const std::string& pem) {
  if (pem.empty()) {
    return {.refused = "no certificate: this coordinator requires one of its project"};
  }
  const std::string key = fingerprint(pem);
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kMostKnown && !known_.contains(key)) known_.clear();
  if (!known_.contains(key)) known_.emplace(key, read(pem));
  Known it = known_.at(key);
  if (it.refused.empty() && revocations_.contains(it.serial)) {
    it.refused =
        concat("the certificate of ", it.name, " has been revoked (serial ", it.serial, ")");
  }
  return it;
}

Verdict CertificateChecker::check(const std::string& pem, Now now) {
  const std::time_t second = std::chrono::system_clock::to_time_t(now);
  const Known it = known(pem);
  const std::string which = "the certificate of " + it.name;
  if (!it.refused.empty()) return {it.name, it.refused};
  if (second < it.from) return {it.name, concat(which, " ", kNotYetValid, it.from_text)};
  if (second > it.until) return {it.name, concat(which, " ", kExpired, ", on ", it.until_text)};
  if (second > ca_until_) return {it.name, "the project's CA has expired"};
  return {it.name, "", std::min(it.until, ca_until_)};
}

}  // namespace pride::coord
