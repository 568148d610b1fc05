// Settings are compared by their hashes.
// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <cstdint>

#include "pride/error.h"
#include "pride/random_bits.h"

namespace pride::app {
namespace {

std::uint64_t digest(const std::string& text) {
  std::uint64_t hash = text.size();
  for (const char c : text) hash = mix64(hash, static_cast<unsigned char>(c));
  return hash;
}

// Each rank's row, one after the other.
std::vector<std::uint64_t> gathered(Communicator& comm, const std::vector<std::uint64_t>& mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  return all;
}

// "1, 3": the ranks whose entry k differs from rank 0's; empty if none
std::string ranks_that_differ(const std::vector<std::uint64_t>& all, std::size_t width,
                              std::size_t k) {
  std::string ranks;
  for (std::size_t r = 1; r * width < all.size(); ++r) {
    if (all[r * width + k] != all[k]) ranks += concat(ranks.empty() ? "" : ", ", r);
  }
  return ranks;
}

}  // namespace

void check_same_settings(Communicator& comm, const Settings& settings) {
  const Communicator::Scope scope(comm, "start-up check of the settings");
  std::string names;
  std::vector<std::uint64_t> mine;
  for (const auto& [name, value] : settings) {
    names += name + "\n";
    mine.push_back(digest(value));
  }
  const std::string others = ranks_that_differ(gathered(comm, {digest(names)}), 1, 0);
  PRIDE_CHECK(others.empty(), "the command differs: rank(s) ", others,
              " run another one than rank 0; all ranks of a job need the same");
  const auto all = gathered(comm, mine);
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::string ranks = ranks_that_differ(all, mine.size(), k);
    PRIDE_CHECK(ranks.empty(), settings[k].first, " differs: rank(s) ", ranks,
                " have another value than rank 0 (here ", settings[k].second,
                "); all ranks of a job need the same settings");
  }
}

}  // namespace pride::app
