// Owning wrappers of libcrypto's certificates and keys, and names in them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>
#include <string>

namespace pride::coord {

template <auto Free>
struct FreedBy {
  template <typename T>
  void operator()(T* p) const noexcept {
    Free(p);
  }
};
using X509Ptr = std::unique_ptr<X509, FreedBy<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using BioPtr = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;

// Null unless the text begins with a certificate, or a key.
X509Ptr read_certificate(const std::string& pem);
KeyPtr read_key(const std::string& pem);

std::string common_name(const X509& certificate);
std::string serial_of(const X509& certificate);  // hexadecimal, upper case
std::time_t seconds_of(const ASN1_TIME* time);   // of Unix time; 0: invalid
std::string time_text(const ASN1_TIME* time);    // 2026-11-24T22:00:00Z
std::string openssl_error();                     // the oldest in the queue, which is cleared

}  // namespace pride::coord
