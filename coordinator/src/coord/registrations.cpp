// SPDX-License-Identifier: Apache-2.0
#include "coord/registrations.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <limits>

#include "coord/refusals.h"
#include "coord/run_message.h"
#include "coord/stored.pb.h"
#include "pride/error.h"
#include "pride/round_record.h"

namespace pride::coord {
namespace {

constexpr int kMostWorkers = std::numeric_limits<decltype(Voter::number)>::max();

constexpr std::size_t kMostNameBytes = 64;
constexpr std::chrono::minutes kMinute{1};

SecretHash hash_of_secret(std::string_view secret) {
  SecretHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), hash.data());
  return hash;
}

bool is_name(std::string_view name) {
  const auto fits = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMostNameBytes && std::ranges::all_of(name, fits);
}

void forget_before(std::deque<Time>& times, Time now) {
  while (!times.empty() && times.front() + kMinute <= now) times.pop_front();
}

// Without the port, which differs per connection.
std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

std::string random_token() {
  std::string token(16, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), 16) != 1) {
    throw Error("the system has no random bytes");
  }
  return token;
}

Registrations::Registrations(const CoordinatorOptions& options) : options_(options) {}

std::string Registrations::refuse_rate(const Peer& peer, Time now) {
  for (auto entry = attempts_.begin(); entry != attempts_.end();) {
    forget_before(entry->second, now);
    entry = entry->second.empty() ? attempts_.erase(entry) : std::next(entry);
  }
  const bool by_address = peer.certificate.empty();
  std::deque<Time>& times = attempts_[by_address ? host_of(peer.address) : peer.certificate];
  if (std::ssize(times) >= options_.attempts_per_minute) {
    return concat("more than ", options_.attempts_per_minute, kTooOften,
                  by_address ? "from this address" : "with this certificate");
  }
  times.push_back(now);
  return {};
}

std::string Registrations::refuse_name(const std::string& name, std::string_view secret,
                                       int vote_weight, const Peer& peer) const {
  if (!peer.certificate.empty() && !name.empty() && name != peer.certificate) {
    return concat("the certificate is of '", peer.certificate, "', not of this name");
  }
  if (!is_name(peer.certificate.empty() ? name : peer.certificate)) {
    return concat("a name has 1 to ", kMostNameBytes,
                  " letters, digits, '.', '_' and '-', this one does not");
  }
  if (peer.certificate.empty() && secret.size() != kSecretBytes) {
    return concat("the secret has ", secret.size(), " bytes, not ", kSecretBytes);
  }
  const int most_weight = options_.most_weight_of_a_worker();
  if (options_.weighting == Weighting::kGiven && (vote_weight < 1 || vote_weight > most_weight)) {
    return concat("a weight of ", vote_weight, " votes, must be from 1 to ", most_weight);
  }
  return {};
}

std::string Registrations::refuse_owner(const Entry& entry, std::string_view secret,
                                        const Peer& peer) const {
  if (!peer.certificate.empty()) return {};
  if (entry.by_certificate) return concat("'", entry.name, "' belongs to a certificate");
  const SecretHash hash = hash_of_secret(secret);
  const bool equal = CRYPTO_memcmp(hash.data(), entry.secret.data(), hash.size()) == 0;
  return equal ? "" : concat("'", entry.name, "' ", kOtherSecret);
}

Registrations::Found Registrations::find_or_add(const std::string& name, std::string_view secret,
                                                int vote_weight, const Peer& peer, Time now) {
  if (std::string why = refuse_rate(peer, now); !why.empty()) return {.refused = why};
  if (std::string why = refuse_name(name, secret, vote_weight, peer); !why.empty()) {
    return {.refused = why};
  }
  const std::string& owner = peer.certificate.empty() ? name : peer.certificate;
  if (const auto known = numbers_.find(owner); known != numbers_.end()) {
    Entry& entry = entries_[static_cast<std::size_t>(known->second)];
    if (std::string why = refuse_owner(entry, secret, peer); !why.empty()) return {.refused = why};
    const bool changed =
        entry.vote_weight != vote_weight || entry.by_certificate == peer.certificate.empty();
    entry.vote_weight = vote_weight;
    entry.by_certificate = !peer.certificate.empty();
    return {.number = known->second, .changed = changed};
  }
  if (std::ssize(entries_) >= std::min(options_.max_workers, kMostWorkers)) {
    return {.refused = concat("the run has ", entries_.size(), " workers, the maximum")};
  }
  forget_before(added_, now);
  if (std::ssize(added_) >= options_.registrations_per_minute) {
    return {.refused =
                concat("more than ", options_.registrations_per_minute, " new workers a minute")};
  }
  added_.push_back(now);
  const int number = static_cast<int>(entries_.size());
  entries_.push_back({owner, hash_of_secret(secret), !peer.certificate.empty(), vote_weight});
  numbers_[owner] = number;
  return {.number = number, .added = true, .changed = true};
}

std::string Registrations::save() const {
  stored::Registrations message;
  for (const Entry& entry : entries_) {
    stored::Registration& one = *message.add_workers();
    one.set_name(entry.name);
    one.set_secret_sha256(entry.secret.data(), entry.secret.size());
    one.set_by_certificate(entry.by_certificate);
    one.set_vote_weight(static_cast<std::uint32_t>(entry.vote_weight));
  }
  return message.SerializeAsString();
}

void Registrations::load(std::string_view bytes, const std::string& where) {
  stored::Registrations message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw DataError(where + ": no registrations");
  }
  for (const stored::Registration& one : message.workers()) {
    Entry entry{one.name(), {}, one.by_certificate(), static_cast<int>(one.vote_weight())};
    const std::string& hash = one.secret_sha256();
    if (!is_name(entry.name) || hash.size() != entry.secret.size() ||
        !numbers_.emplace(entry.name, static_cast<int>(entries_.size())).second) {
      throw DataError(concat(where, ": registration ", entries_.size(), " is damaged"));
    }
    std::ranges::copy(hash, entry.secret.begin());
    entries_.push_back(std::move(entry));
  }
}

}  // namespace pride::coord
