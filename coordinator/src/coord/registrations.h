// Registrations: names and numbers of workers, fixed for the whole run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coord/events.h"
#include "coord/options.h"

namespace pride::coord {

using SecretHash = std::array<unsigned char, 32>;  // SHA-256; the secret itself is not stored

// 16 random bytes from the system's generator.
std::string random_token();

class Registrations {
 public:
  struct Entry {
    std::string name;
    SecretHash secret{};
    bool by_certificate = false;  // then the secret proves nothing
    int vote_weight = 1;
  };
  struct Found {
    int number = -1;
    bool added = false;    // the name is new
    bool changed = false;  // save needed
    std::string refused = {};
  };

  explicit Registrations(const CoordinatorOptions& options);

  // The number of the name. A certificate determines the name. Without a certificate the name
  // belongs to the holder of its secret.
  Found find_or_add(const std::string& name, std::string_view secret, int vote_weight,
                    const Peer& peer, Time now);

  const std::vector<Entry>& entries() const noexcept { return entries_; }  // by number

  // For the journal. load() throws DataError, beginning with `where`.
  std::string save() const;
  void load(std::string_view bytes, const std::string& where);

 private:
  std::string refuse_rate(const Peer& peer, Time now);
  std::string refuse_name(const std::string& name, std::string_view secret, int vote_weight,
                          const Peer& peer) const;
  std::string refuse_owner(const Entry& entry, std::string_view secret, const Peer& peer) const;

  const CoordinatorOptions& options_;
  std::vector<Entry> entries_;
  std::map<std::string, int, std::less<>> numbers_;
  std::deque<Time> added_;  // new names of the last minute
  std::map<std::string, std::deque<Time>>
      attempts_;  // of the last minute, by certificate or address
};

}  // namespace pride::coord
