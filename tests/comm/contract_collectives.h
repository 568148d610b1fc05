// Collectives of every transport. Oracle: closed forms over the pattern of contract_data.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

#include "comm/contract_data.h"

namespace pride::contract {

inline void all_to_all_moves_slices(Communicator& comm) {
  for (const std::size_t size : sizes(comm.size())) {
    Message send, recv(size * comm.size());
    for (int j = 0; j < comm.size(); ++j) {
      const Message slice = message(comm.rank(), j, size);
      send.insert(send.end(), slice.begin(), slice.end());
    }
    comm.all_to_all(send, recv);
    for (int i = 0; i < comm.size(); ++i) {
      expect_message(comm, std::span(recv).subspan(size * i, size), i, comm.rank());
    }
  }
}

inline void all_to_all_v_moves_uneven_messages(Communicator& comm) {
  for (const std::size_t size : sizes(comm.size())) {
    std::vector<Message> out, in;
    for (int i = 0; i < comm.size(); ++i) {
      out.push_back(message(comm.rank(), i, uneven(size, comm.rank(), i)));
      in.emplace_back(uneven(size, i, comm.rank()));
    }
    std::vector<Outgoing> send;
    std::vector<Incoming> recv;
    for (int i = 0; i < comm.size(); ++i) {
      if (i != comm.rank()) send.push_back({i, out[i]});
      if (i != comm.rank()) recv.push_back({i, in[i]});
    }
    comm.all_to_all_v(send, recv);
    for (const Incoming& m : recv) expect_message(comm, m.bytes, m.from, comm.rank());
  }
}

// Between neighbours only: two messages each, which keep their order, and nothing to the others.
inline void all_to_all_v_moves_what_is_listed(Communicator& comm) {
  if (comm.size() == 1) return comm.all_to_all_v({}, {});
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const Traffic before = comm.traffic();
  const Message first = message(comm.rank(), 1, 5000), second = message(comm.rank(), 2, 70);
  Message in_first(5000), in_second(70);
  const Outgoing send[] = {{next, first}, {next, second}};
  const Incoming recv[] = {{previous, in_first}, {previous, in_second}};
  comm.all_to_all_v(send, recv);
  expect_message(comm, in_first, previous, 1);
  expect_message(comm, in_second, previous, 2);
  EXPECT_EQ(comm.traffic().messages_sent - before.messages_sent, 2u);
  EXPECT_EQ(comm.traffic().bytes_received - before.bytes_received, 5070u);
}

inline void all_gather_collects_in_rank_order(Communicator& comm) {
  for (const std::size_t size : sizes(comm.size())) {
    const Message mine = message(comm.rank(), 0, size);
    Message all(size * comm.size());
    comm.all_gather(mine, all);
    Message in_place(all.size());
    const auto own = std::span(in_place).subspan(size * comm.rank(), size);
    std::copy(mine.begin(), mine.end(), own.begin());
    comm.all_gather(own, in_place);
    for (int i = 0; i < comm.size(); ++i) {
      expect_message(comm, std::span(all).subspan(size * i, size), i, 0);
      expect_message(comm, std::span(in_place).subspan(size * i, size), i, 0);
    }
  }
}

inline void all_gather_v_collects_uneven_parts(Communicator& comm) {
  for (const std::size_t size : sizes(comm.size())) {
    std::vector<Message> parts;
    for (int i = 0; i < comm.size(); ++i) parts.emplace_back(uneven(size, i, 0));
    const Message mine = message(comm.rank(), 0, parts[comm.rank()].size());
    const Message tail = message(comm.rank(), 1, 3);
    std::vector<Message> tails(parts.size(), Message(3));
    std::vector<Incoming> all;
    for (int i = 0; i < comm.size(); ++i) {
      if (i == comm.rank()) continue;
      all.push_back({i, parts[i]});
      all.push_back({i, tails[i]});
    }
    const std::span<const std::byte> both[] = {mine, tail};
    comm.all_gather_v(both, all);
    for (const Incoming& m : all)
      expect_message(comm, m.bytes, m.from,
                     m.bytes.size() == 3 && m.bytes.data() == tails[m.from].data());
  }
}

inline void broadcast_reaches_all_from_any_root(Communicator& comm) {
  for (const std::size_t size : sizes(comm.size())) {
    for (int root = 0; root < comm.size(); ++root) {
      Message bytes = comm.rank() == root ? message(root, 0, size) : Message(size);
      comm.broadcast(bytes, root);
      expect_message(comm, bytes, root, 0);
    }
  }
  constexpr std::size_t kScattered = (std::size_t{1} << 16) + 5;  // its parts differ in size
  Message bytes = comm.rank() == 1 ? message(1, 0, kScattered) : Message(kScattered);
  if (comm.size() == 1) return;
  comm.broadcast(bytes, 1);
  expect_message(comm, bytes, 1, 0);
}

// The steady clock is the machine's, so the ranks' readings can be compared.
inline void barrier_holds_until_all_have_come(Communicator& comm) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int late = 0; late < comm.size(); ++late) {
    if (comm.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::int64_t came = now();
    comm.barrier();
    const std::int64_t went = now();
    std::vector<std::int64_t> all_came(comm.size());
    comm.all_gather(std::as_bytes(std::span(&came, 1)),
                    std::as_writable_bytes(std::span(all_came)));
    for (int i = 0; i < comm.size(); ++i) {
      EXPECT_GE(went, all_came[i]) << "rank " << comm.rank() << " did not wait for rank " << i;
    }
  }
}

inline void native_sum_is_exact_on_integers(Communicator& comm) {
  for (const std::size_t n : {0, 1, 1001, 300'007}) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = static_cast<float>(i % 1000 * static_cast<std::size_t>(comm.rank() + 1));
    }
    comm.native_sum(values);
    const int factor = comm.size() * (comm.size() + 1) / 2;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      wrong += values[i] != static_cast<float>(static_cast<int>(i % 1000) * factor);
    }
    EXPECT_EQ(wrong, 0u) << "of " << n << " sums, rank " << comm.rank();
  }
}

// Both signs, up to the largest size that this many ranks can add within the type.
template <typename T>
std::int64_t integer_term(int rank, std::size_t i, int world) {
  const std::int64_t most = std::numeric_limits<T>::max() / world;
  if (i % 5 == 0) return i % 2 == 0 ? most : -most;
  const auto mixed = static_cast<std::uint32_t>((i * 31 + static_cast<std::size_t>(rank)) *
                                                std::size_t{2654435761u});
  return static_cast<std::int64_t>(mixed) % (2 * most + 1) - most;
}

template <typename T>
void native_sum_of_integers_is_exact(Communicator& comm) {
  for (const std::size_t n : {0, 1, 1001, 300'007}) {
    std::vector<T> values(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = static_cast<T>(integer_term<T>(comm.rank(), i, comm.size()));
    }
    comm.native_sum(values);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::int64_t sum = 0;
      for (int r = 0; r < comm.size(); ++r) sum += integer_term<T>(r, i, comm.size());
      wrong += values[i] != sum;
    }
    EXPECT_EQ(wrong, 0u) << "of " << n << " sums, rank " << comm.rank() << " of " << comm.size();
  }
}

// Whole numbers up to 256 are bfloat16, and so are their sums here: no addition rounds.
inline void native_sum_of_bf16_is_exact_on_small_numbers(Communicator& comm) {
  const int most = std::max(1, 256 / comm.size());
  const auto small = [&](int rank, std::size_t i) {
    const auto mixed = static_cast<int>((i * 31 + static_cast<std::size_t>(rank) * 7) % 1009);
    return mixed % (2 * most + 1) - most;
  };
  for (const std::size_t n : {0, 1, 1001, 300'007}) {
    std::vector<float> wide(n);
    for (std::size_t i = 0; i < n; ++i) wide[i] = static_cast<float>(small(comm.rank(), i));
    std::vector<BFloat16> values(n);
    to_bf16(wide, values);
    comm.native_sum(values);
    to_float(values, wide);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      int sum = 0;
      for (int r = 0; r < comm.size(); ++r) sum += small(r, i);
      wrong += wide[i] != static_cast<float>(sum);
    }
    EXPECT_EQ(wrong, 0u) << "of " << n << " sums, rank " << comm.rank() << " of " << comm.size();
  }
}

// Sums that round at each addition: in any order, all ranks have one result.
inline void native_sum_of_bf16_is_the_same_on_all_ranks(Communicator& comm) {
  const std::vector<float> mine(1001, comm.rank() == 0 ? 256.0f : 1.0f / 3);
  std::vector<BFloat16> values(mine.size());
  to_bf16(mine, values);
  comm.native_sum(values);
  std::vector<BFloat16> first = values;
  comm.broadcast(std::as_writable_bytes(std::span(first)), 0);
  EXPECT_EQ(values, first) << "rank " << comm.rank() << " of " << comm.size();
}

}  // namespace pride::contract
