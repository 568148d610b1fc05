// The folder of one side's certificates: ca.pem, cert.pem and key.pem.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>
#include <filesystem>
#include <string>

namespace pride::coord {

inline constexpr const char* kCaFile = "ca.pem";
inline constexpr const char* kCertFile = "cert.pem";
inline constexpr const char* kKeyFile = "key.pem";
inline constexpr const char* kRevokedFile = "revoked.txt";  // of a server

struct CertificateFiles {
  std::string ca, cert, key;  // PEM
};

// Throws DataError, naming the file, if one cannot be read or is of the wrong kind, if the key is
// not the certificate's, or if other users can read the key.
CertificateFiles read_certificate_files(const std::filesystem::path& folder);

// The first moment at which the certificate or its CA expires.
std::time_t expiry_of(const CertificateFiles& files);

// The whole file. Throws DataError, naming it.
std::string read_file(const std::filesystem::path& file);

// Writes it under another name first, with these permissions from the beginning, and fsyncs it.
void write_file(const std::filesystem::path& file, const std::string& text, int mode);

// Throws DataError, naming the file, if users other than its owner can read it.
void check_only_owner_reads(const std::filesystem::path& file);

// Throws DataError, naming the file, if the certificate is not one of a server, or it or its CA is
// not valid now.
void check_is_of_server(const CertificateFiles& files, const std::filesystem::path& folder);

}  // namespace pride::coord
