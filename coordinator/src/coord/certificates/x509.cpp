// SPDX-License-Identifier: Apache-2.0
#include "coord/certificates/x509.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <cstdio>
#include <ctime>

namespace pride::coord {
namespace {

BioPtr memory(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

}  // namespace

X509Ptr read_certificate(const std::string& pem) {
  X509Ptr certificate(PEM_read_bio_X509(memory(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

KeyPtr read_key(const std::string& pem) {
  // an empty password: a key that has one is refused, instead of asking on the terminal
  static char none[] = "";
  KeyPtr key(PEM_read_bio_PrivateKey(memory(pem).get(), nullptr, nullptr, none));
  ERR_clear_error();
  return key;
}

std::string common_name(const X509& certificate) {
  std::array<char, 256> text{};
  const int n = X509_NAME_get_text_by_NID(X509_get_subject_name(&certificate), NID_commonName,
                                          text.data(), text.size());
  return n > 0 ? std::string(text.data(), static_cast<std::size_t>(n)) : "";
}

std::string serial_of(const X509& certificate) {
  const std::unique_ptr<BIGNUM, FreedBy<BN_free>> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(&certificate), nullptr));
  char* const digits = number ? BN_bn2hex(number.get()) : nullptr;
  const std::string text = digits != nullptr ? digits : "";
  OPENSSL_free(digits);
  return text;
}

std::time_t seconds_of(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

std::string time_text(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "?";
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string openssl_error() {
  const unsigned long code = ERR_get_error();
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return code == 0 ? "no reason given" : text.data();
}

}  // namespace pride::coord
