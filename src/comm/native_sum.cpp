// native_sum: the transport's own all-reduce, or a sum in rank order over the collectives.
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "comm/bf16_sum.h"
#include "comm/front_door.h"

namespace pride {
namespace {

// In the order of SumType.
constexpr const char* kTypeNames[] = {"float32", "int8", "int16", "int32", "bfloat16"};

// Parts that differ by at most one coordinate, in rank order.
template <typename T>
std::vector<std::span<T>> shards(std::span<T> values, int parts) {
  const std::size_t base = values.size() / parts;
  const std::size_t longer = values.size() % parts;
  std::vector<std::span<T>> list;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts); ++i) {
    const std::size_t n = base + (i < longer ? 1 : 0);
    list.push_back(values.subspan(begin, n));
    begin += n;
  }
  return list;
}

template <typename T>
void add_to(std::span<const T> row, std::span<T> sum) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(sum[i] + row[i]);
}

}  // namespace

// Each rank sums its shard over the ranks, first to last. Then all gather the shards. `rows`, the
// receive buffer for the shard, is declared by the caller outside its guarded body.
template <typename T>
void Communicator::add_in_rank_order(std::span<T> values, std::vector<T>& rows) {
  const auto parts = shards(values, size_);
  const std::span<T> own = parts[rank_];
  rows.resize(own.size() * size_);
  const auto row = [&](int i) { return std::span(rows).subspan(own.size() * i, own.size()); };
  const auto bytes = [](std::span<T> part) { return std::as_writable_bytes(part); };
  std::vector<Outgoing> send;
  std::vector<Incoming> to_add, to_keep;
  for (const int i : others()) {
    send.push_back({i, bytes(parts[i])});
    to_add.push_back({i, bytes(row(i))});
    to_keep.push_back({i, bytes(parts[i])});
  }
  copy_bytes(bytes(own), bytes(row(rank_)));
  exchange(kTagSumScatter, send, to_add);
  for (int i = 1; i < size_; ++i) add_to(std::span<const T>(row(i)), row(0));
  copy_bytes(bytes(row(0)), bytes(own));
  const ConstBytes sum = bytes(own);
  gather_v(kTagSumGather, {&sum, 1}, to_keep);
}

// An all-reduce of the transport may not detect different sizes or types: they are compared first.
template <typename T>
void Communicator::sum_natively(SumType type, std::span<T> values) {
  const std::uint64_t mine = values.size() << 3 | static_cast<std::uint64_t>(type);
  std::vector<std::uint64_t> sizes(size_);
  std::vector<T> rows;
  guarded("native_sum", [&] {
    gather(kTagNativeSum, std::as_bytes(std::span(&mine, 1)),
           std::as_writable_bytes(std::span(sizes)));
    for (int i = 0; i < size_; ++i) {
      if (sizes[i] == mine) continue;
      const auto name = [](std::uint64_t size) {
        return size % 8 < std::size(kTypeNames) ? kTypeNames[size % 8] : "no type";
      };
      throw CommError(concat("expected ", mine >> 3, " coordinates of ", name(mine), ", rank ", i,
                             " has ", sizes[i] >> 3, " of ", name(sizes[i])));
    }
    if (!do_native_sum(type, std::as_writable_bytes(values))) add_in_rank_order(values, rows);
  });
}

void Communicator::native_sum(std::span<float> values) { sum_natively(SumType::kFloat32, values); }

void Communicator::native_sum(std::span<std::int8_t> values) {
  sum_natively(SumType::kInt8, values);
}

void Communicator::native_sum(std::span<std::int16_t> values) {
  sum_natively(SumType::kInt16, values);
}

void Communicator::native_sum(std::span<std::int32_t> values) {
  sum_natively(SumType::kInt32, values);
}

void Communicator::native_sum(std::span<BFloat16> values) {
  sum_natively(SumType::kBFloat16, values);
}

}  // namespace pride
