// Hosts: which ranks share a machine, for exchanges in two levels.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pride {

// Every host has as many ranks as any other. The k-th rank of a host, in the order of the ranks,
// works together with the k-th rank of each other host.
class Hosts {
 public:
  Hosts() = default;  // not known: exchanges have one level

  // host_of_rank[r]: any number that stands for the machine of rank r, e.g. from an all-gather of
  // names. Throws InvalidArgument unless all hosts have the same number of ranks.
  explicit Hosts(std::span<const int> host_of_rank);

  // Ranks 0 to ranks_per_host - 1 on the first host, and so on.
  // Throws InvalidArgument unless `ranks_per_host` divides `world`.
  static Hosts of_size(int world, int ranks_per_host);

  bool known() const noexcept { return per_host_ > 0; }
  int world() const noexcept { return static_cast<int>(host_of_.size()); }
  int per_host() const noexcept { return per_host_; }
  int count() const noexcept { return known() ? world() / per_host_ : 0; }

  // True if an exchange in two levels differs from one in one level.
  bool two_levels() const noexcept { return per_host_ > 1 && count() > 1; }

  // Hosts are numbered by their first rank; `place` is from 0 to per_host() - 1.
  int host_of(int rank) const { return host_of_.at(static_cast<std::size_t>(rank)); }
  int place_of(int rank) const { return place_of_.at(static_cast<std::size_t>(rank)); }
  int rank_at(int host, int place) const {
    return ranks_.at(static_cast<std::size_t>(host * per_host_ + place));
  }

 private:
  int per_host_ = 0;
  std::vector<int> host_of_, place_of_;  // by rank
  std::vector<int> ranks_;               // host after host
};

}  // namespace pride
