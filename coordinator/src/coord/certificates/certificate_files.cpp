// SPDX-License-Identifier: Apache-2.0
#include "coord/certificates/certificate_files.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <iterator>
#include <system_error>

#include "coord/certificates/revocations.h"
#include "coord/certificates/x509.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

namespace fs = std::filesystem;

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

void check_only_owner_reads(const fs::path& file) {
  const auto others = fs::perms::group_all | fs::perms::others_all;
  if ((fs::status(file).permissions() & others) == fs::perms::none) return;
  throw DataError(
      concat(file.string(), " can be read by others than its owner: chmod 600 ", file.string()));
}

void check_is_of_server(const CertificateFiles& files, const fs::path& folder) {
  const X509Ptr cert = read_certificate(files.cert);
  if (X509_check_purpose(cert.get(), X509_PURPOSE_SSL_SERVER, 0) != 1) {
    throw DataError(
        concat((folder / kCertFile).string(), " is not a server's: pride certs server makes one"));
  }
  const auto check_dates = [&](const X509& it, const char* name, const char* what_to_do) {
    const std::time_t now = std::time(nullptr);
    const auto *from = X509_get0_notBefore(&it), *until = X509_get0_notAfter(&it);
    if (seconds_of(from) <= now && now <= seconds_of(until)) return;
    const bool early = now < seconds_of(from);
    throw DataError(concat((folder / name).string(),
                           early ? " is not valid before " : " has expired, on ",
                           time_text(early ? from : until), ": ", what_to_do));
  };
  check_dates(*cert, kCertFile, "pride certs server --overwrite makes another");
  check_dates(*read_certificate(files.ca), kCaFile,
              "make a new CA (coordinator/docs/certificates.md)");
  if (Revocations(folder / kRevokedFile).contains(serial_of(*cert))) {
    throw DataError(concat((folder / kCertFile).string(),
                           " was revoked: pride certs server --overwrite makes another"));
  }
}

std::time_t expiry_of(const CertificateFiles& files) {
  return std::min(seconds_of(X509_get0_notAfter(read_certificate(files.ca).get())),
                  seconds_of(X509_get0_notAfter(read_certificate(files.cert).get())));
}

std::string read_file(const fs::path& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError(concat("cannot read ", file.string(), ": ", reason()));
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const fs::path& file, const std::string& text, int mode) {
  const std::string part = file.string() + ".part";
  ::unlink(part.c_str());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) throw DataError(concat("cannot write ", part, ": ", reason()));
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  const std::string why = reason();
  ::close(fd);
  if (!written) throw DataError(concat("cannot write ", part, ": ", why));
  fs::rename(part, file);
}

CertificateFiles read_certificate_files(const fs::path& folder) {
  const CertificateFiles files{.ca = read_file(folder / kCaFile),
                               .cert = read_file(folder / kCertFile),
                               .key = read_file(folder / kKeyFile)};
  const X509Ptr ca = read_certificate(files.ca), cert = read_certificate(files.cert);
  const KeyPtr key = read_key(files.key);
  const auto check = [&](bool is_so, const char* name, const char* why) {
    if (!is_so) throw DataError(concat((folder / name).string(), " ", why));
  };
  check(ca != nullptr, kCaFile, "is not a certificate in PEM");
  check(cert != nullptr, kCertFile, "is not a certificate in PEM");
  const KeyPtr issuer(X509_get_pubkey(ca.get()));
  check(issuer && X509_verify(cert.get(), issuer.get()) == 1, kCertFile,
        "is not of this project's CA, the ca.pem beside it");
  ERR_clear_error();
  check(key != nullptr, kKeyFile, "is not a key in PEM without a password");
  check(X509_check_private_key(cert.get(), key.get()) == 1, kKeyFile,
        "is not the key of cert.pem beside it");
  check_only_owner_reads(folder / kKeyFile);
  return files;
}

}  // namespace pride::coord
