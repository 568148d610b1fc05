// A project's certificate authority: a folder with its key, and a folder for each certificate.
// SPDX-License-Identifier: Apache-2.0
//
//   DIR/ca.pem, ca.key        who has ca.key can make workers
//   DIR/issued.txt            serial, kind, name, first and last moment of each certificate
//   DIR/revoked.txt           serial, name, moment: what `pride serve` reads, see server/
//   DIR/server/               ca.pem, cert.pem, key.pem, revoked.txt: for `pride serve`
//   DIR/workers/NAME/         ca.pem, cert.pem, key.pem: for `pride train`
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pride::coord {

struct Issued {
  std::string serial, kind;
  std::string name;         // a server's names, with commas between them
  std::string from, until;  // moments as 2026-11-24T22:00:00Z
  bool revoked = false;
};

// Seconds from now; tests make certificates of the past and of the future.
struct Validity {
  long from_s = -24L * 3600;  // clocks differ
  long until_s = 365L * 24 * 3600;
};

class Authority {
 public:
  // Makes the folder, and key and certificate of a CA in it. Throws DataError if it is not empty.
  static void create(const std::filesystem::path& folder, const std::string& project,
                     Validity validity);

  // Throws DataError unless the folder has a CA.
  explicit Authority(std::filesystem::path folder);

  // `names`: host names and addresses by which workers call the server. Returns the new folder,
  // which must not be there yet; a server's may be replaced.
  std::filesystem::path issue_server(const std::vector<std::string>& names, Validity validity,
                                     bool overwrite = false);
  std::filesystem::path issue_worker(const std::string& name, Validity validity);

  // Revokes and returns all certificates for this name, or the one with this serial. Throws
  // DataError if there is none.
  std::vector<Issued> revoke(const std::string& name_or_serial);

  std::vector<Issued> issued() const;

 private:
  struct Request;
  void issue(const Request& request, const std::filesystem::path& into);
  void publish_revoked() const;

  std::filesystem::path folder_;
};

}  // namespace pride::coord
