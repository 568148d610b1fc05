// SPDX-License-Identifier: Apache-2.0
#include "coord/certificates/authority.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

#include "coord/certificates/certificate_files.h"
#include "coord/certificates/x509.h"
#include "pride/error.h"

namespace pride::coord {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCaKeyFile = "ca.key";
constexpr const char* kIssuedFile = "issued.txt";
constexpr int kSerialBits = 127;

void check(bool done, const char* what) {
  if (!done) throw Error(concat("certificates: ", what, ": ", openssl_error()));
}

template <typename Write>
std::string pem_of(Write&& write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  check(bio && write(bio.get()) == 1, "writing PEM");
  char* data = nullptr;
  const long n = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(n)};
}

std::string pem_of(X509* certificate) {
  return pem_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

std::string pem_of(EVP_PKEY* key) {
  return pem_of([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

KeyPtr make_key() {
  KeyPtr key(EVP_EC_gen("P-256"));
  check(key != nullptr, "making a key");
  return key;
}

void set_serial(X509& certificate) {
  const std::unique_ptr<BIGNUM, FreedBy<BN_free>> number(BN_new());
  check(number && BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
            BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(&certificate)) != nullptr,
        "making a serial");
}

void set_name(X509_NAME* name, const std::string& text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.c_str());
  check(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, bytes, -1, -1, 0) == 1,
        "writing a name");
}

void extend(X509& certificate, X509& issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, FreedBy<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  check(extension && X509_add_ext(&certificate, extension.get(), -1) == 1, value.c_str());
}

// A certificate without issuer, extensions and signature.
X509Ptr begin_certificate(const std::string& name, EVP_PKEY* key, Validity validity) {
  X509Ptr certificate(X509_new());
  check(certificate != nullptr && X509_set_version(certificate.get(), X509_VERSION_3) == 1,
        "making a certificate");
  set_serial(*certificate);
  check(X509_gmtime_adj(X509_getm_notBefore(certificate.get()), validity.from_s) != nullptr &&
            X509_gmtime_adj(X509_getm_notAfter(certificate.get()), validity.until_s) != nullptr,
        "setting dates");
  set_name(X509_get_subject_name(certificate.get()), name);
  check(X509_set_pubkey(certificate.get(), key) == 1, "setting a key");
  return certificate;
}

bool is_address(const std::string& name) {
  in6_addr room{};
  return inet_pton(AF_INET, name.c_str(), &room) == 1 ||
         inet_pton(AF_INET6, name.c_str(), &room) == 1;
}

std::string alternative_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    PRIDE_CHECK(!name.empty() && name.find_first_of(", \t\n;=/") == name.npos, "certs: \"", name,
                "\" is not a host name");
    text += concat(text.empty() ? "" : ",", is_address(name) ? "IP:" : "DNS:", name);
  }
  return text;
}

std::string now_text() {
  const std::unique_ptr<ASN1_TIME, FreedBy<ASN1_TIME_free>> now(X509_gmtime_adj(nullptr, 0));
  return time_text(now.get());
}

// True for its serial, its name, a server's whole list of names, or one name in that list.
bool is_called(const Issued& certificate, const std::string& name_or_serial) {
  if (certificate.serial == name_or_serial || certificate.name == name_or_serial) return true;
  return name_or_serial.find(',') == std::string::npos &&
         concat(",", certificate.name, ",").find(concat(",", name_or_serial, ",")) !=
             std::string::npos;
}

void append_line(const fs::path& file, const std::string& line) {
  write_file(file, (fs::exists(file) ? read_file(file) : "") + line + "\n", 0644);
}

}  // namespace

struct Authority::Request {
  const char* kind;
  std::vector<std::string> names;
  std::string alternatives;  // of a server
  Validity validity;
};

void Authority::create(const fs::path& folder, const std::string& project, Validity validity) {
  if (fs::exists(folder / kCaKeyFile) || fs::exists(folder / kCaFile)) {
    throw DataError(concat(folder.string(), " has a CA already"));
  }
  if (fs::is_directory(folder) && !fs::is_empty(folder)) {
    throw DataError(concat(folder.string(), ": holds ",
                           fs::directory_iterator(folder)->path().filename().string(),
                           " and no CA; a CA needs its own folder"));
  }
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::owner_all);
  const KeyPtr key = make_key();
  const X509Ptr ca = begin_certificate("pride " + project, key.get(), validity);
  check(X509_set_issuer_name(ca.get(), X509_get_subject_name(ca.get())) == 1, "setting an issuer");
  extend(*ca, *ca, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(*ca, *ca, NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(*ca, *ca, NID_subject_key_identifier, "hash");
  check(X509_sign(ca.get(), key.get(), EVP_sha256()) > 0, "signing");
  write_file(folder / kCaKeyFile, pem_of(key.get()), 0600);
  write_file(folder / kCaFile, pem_of(ca.get()), 0644);
}

Authority::Authority(fs::path folder) : folder_(std::move(folder)) {
  if (!fs::exists(folder_ / kCaKeyFile)) {
    throw DataError(concat(folder_.string(), " has no CA: pride certs init ", folder_.string()));
  }
  check_only_owner_reads(folder_ / kCaKeyFile);
}

void Authority::issue(const Request& request, const fs::path& into) {
  const std::string ca_pem = read_file(folder_ / kCaFile);
  const X509Ptr ca = read_certificate(ca_pem);
  const KeyPtr ca_key = read_key(read_file(folder_ / kCaKeyFile)), key = make_key();
  if (!ca || !ca_key) throw DataError(concat("the CA in ", folder_.string(), " cannot be read"));
  if (X509_check_private_key(ca.get(), ca_key.get()) != 1) {
    throw DataError(concat((folder_ / kCaKeyFile).string(), " is not the key of ca.pem beside it"));
  }
  const bool server = !request.alternatives.empty();
  const X509Ptr made = begin_certificate(request.names.front(), key.get(), request.validity);
  check(X509_set_issuer_name(made.get(), X509_get_subject_name(ca.get())) == 1,
        "setting an issuer");
  extend(*made, *ca, NID_basic_constraints, "critical,CA:FALSE");
  extend(*made, *ca, NID_key_usage, "critical,digitalSignature");
  extend(*made, *ca, NID_ext_key_usage, server ? "serverAuth" : "clientAuth");
  extend(*made, *ca, NID_authority_key_identifier, "keyid");
  if (server) extend(*made, *ca, NID_subject_alt_name, request.alternatives);
  check(X509_sign(made.get(), ca_key.get(), EVP_sha256()) > 0, "signing");
  // listed before anyone can have it: an unlisted certificate could not be revoked by name
  std::string names;
  for (const std::string& name : request.names) names += concat(names.empty() ? "" : ",", name);
  append_line(folder_ / kIssuedFile, concat(serial_of(*made), " ", request.kind, " ", names, " ",
                                            time_text(X509_get0_notBefore(made.get())), " ",
                                            time_text(X509_get0_notAfter(made.get()))));
  fs::create_directories(into);
  fs::permissions(into, fs::perms::owner_all);
  write_file(into / kKeyFile, pem_of(key.get()), 0600);
  write_file(into / kCertFile, pem_of(made.get()), 0644);
  write_file(into / kCaFile, ca_pem, 0644);
}

fs::path Authority::issue_server(const std::vector<std::string>& names, Validity validity,
                                 bool overwrite) {
  PRIDE_CHECK(!names.empty(), "certs: a server needs a name under which workers connect");
  const std::string alternatives = alternative_names(names);
  const fs::path into = folder_ / "server";
  if (fs::exists(into) && !overwrite) {
    throw DataError(concat("the coordinator has a certificate, in ", into.string(),
                           ": --overwrite replaces it"));
  }
  issue({"server", names, alternatives, validity}, into);
  publish_revoked();
  return into;
}

fs::path Authority::issue_worker(const std::string& name, Validity validity) {
  const fs::path into = folder_ / "workers" / name;
  if (fs::exists(into)) {
    throw DataError(concat("worker ", name, " has a certificate, in ", into.string(),
                           ": revoke it and move the folder away, or choose another name"));
  }
  issue({"worker", {name}, "", validity}, into);
  return into;
}

std::vector<Issued> Authority::issued() const {
  std::string revoked;
  if (fs::exists(folder_ / kRevokedFile)) revoked = "\n" + read_file(folder_ / kRevokedFile);
  std::ifstream in(folder_ / kIssuedFile);
  std::vector<Issued> all;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream words(line);
    Issued one;
    if (!(words >> one.serial >> one.kind >> one.name >> one.from >> one.until)) {
      throw DataError(concat((folder_ / kIssuedFile).string(), ":", number,
                             ": not a certificate's serial, kind, name and dates"));
    }
    one.revoked = revoked.find("\n" + one.serial + " ") != revoked.npos;
    all.push_back(one);
  }
  return all;
}

std::vector<Issued> Authority::revoke(const std::string& name_or_serial) {
  std::vector<Issued> found;
  for (const Issued& one : issued()) {
    if (!is_called(one, name_or_serial)) continue;
    found.push_back(one);
    if (one.revoked) continue;
    append_line(folder_ / kRevokedFile, concat(one.serial, " ", one.name, " ", now_text()));
  }
  if (found.empty()) {
    throw DataError(concat(folder_.string(), " has issued no certificate for ", name_or_serial));
  }
  publish_revoked();
  return found;
}

void Authority::publish_revoked() const {
  const fs::path server = folder_ / "server", list = folder_ / kRevokedFile;
  if (fs::exists(server) && fs::exists(list)) {
    write_file(server / kRevokedFile, read_file(list), 0644);
  }
}

}  // namespace pride::coord
