// SPDX-License-Identifier: Apache-2.0
#include "exchange/sparse_gather.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codecs/payload.h"
#include "codecs/sparse.h"
#include "core/floats_of.h"
#include "exchange/frames.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

constexpr int kHeaderTag = 11;
constexpr int kPayloadTag = 12;

// A frame about the whole bucket, to everybody alike.
FrameHeader sparse_header(const Bucket& bucket, int sender, const StepContext& ctx) {
  FrameHeader h;
  h.codec = Codec::kSparse;
  h.bucket = static_cast<std::uint32_t>(bucket.index);
  h.rank = static_cast<std::uint16_t>(sender);
  h.step = static_cast<std::uint64_t>(ctx.step);
  h.n_coords = bucket.size();
  h.scalars = ctx.scalars_digest;
  return h;
}

// A header of which it is not known yet whether it is here.
struct Awaited {
  int from;
  Ticket ticket;
};

// Gives way for a moment; longer when nothing has come for a while.
void pause(int rounds) {
  if (rounds < 50) return std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::microseconds(rounds < 1000 ? 20 : 200));
}

// Calls arrived(rank) for each header as it comes. All are looked at in turn: were one waited for,
// the payloads behind the others would stay where they are, and one lost header would look to their
// senders as if this rank was at fault.
template <typename Arrived>
void as_they_come(Communicator& comm, std::vector<Awaited> headers, const std::string& where,
                  Arrived&& arrived) {
  const auto deadline = std::chrono::steady_clock::now() + comm.timeout();
  for (int rounds = 0; !headers.empty(); ++rounds) {
    const auto is_here = [&](Awaited& header) {
      if (!comm.test(header.ticket)) return false;
      arrived(header.from);
      return true;
    };
    if (std::erase_if(headers, is_here) > 0) {
      rounds = 0;
    } else if (std::chrono::steady_clock::now() > deadline) {
      throw CommError(
          concat(where, ": no frame from rank ", headers.front().from, " at the deadline"));
    } else {
      pause(rounds);
    }
  }
}

// Headers first: they say how long the payloads are. wire.down[i] takes the header of rank i,
// wire.in[i] the payload.
void gather(Communicator& comm, const Bucket& bucket, const std::string& where, Wire& wire) {
  const int n = comm.size(), me = comm.rank();
  const std::span<const std::byte> own = wire.up[0].span();
  std::vector<Awaited> headers;
  std::vector<Ticket> rest;
  wire.in.resize(static_cast<std::size_t>(n));
  for (int d = 1; d < n; ++d) {
    const int from = (me - d + n) % n;
    auto& header = wire.down[static_cast<std::size_t>(from)];
    header.resize(kHeaderBytes);
    headers.push_back({from, comm.start_recv(from, kHeaderTag, header.span())});
  }
  for (int d = 1; d < n; ++d) {
    const int to = (me + d) % n;
    rest.push_back(comm.start_send(to, kHeaderTag, own.first(kHeaderBytes)));
    rest.push_back(comm.start_send(to, kPayloadTag, own.subspan(kHeaderBytes)));
  }
  // more than this is no payload: all coordinates are entries
  const std::size_t most = SparseShape(bucket.size(), bucket.size()).bytes;
  as_they_come(comm, std::move(headers), where, [&](int from) {
    const auto i = static_cast<std::size_t>(from);
    wire.in[i].resize(claimed_payload(wire.down[i].span(), most, from, where));
    rest.push_back(comm.start_recv(from, kPayloadTag, wire.in[i].span()));
  });
  comm.wait_all(rest);
}

std::optional<Poison> check_mean(const Bucket& bucket, std::span<const float> mean) {
  const std::size_t bad = kernels::first_non_finite(mean);
  if (bad == kernels::kAllFinite) return std::nullopt;
  for (const Shard& shard : bucket.shards) {
    for (const Piece& p : shard.pieces) {
      if (bucket.begin + bad < p.end) {
        return Poison{Poison::kSum, static_cast<std::uint32_t>(p.tensor)};
      }
    }
  }
  return Poison{Poison::kSum, 0};
}

}  // namespace

void encode_sparse(const Bucket& bucket, std::span<const std::uint64_t> mask,
                   std::span<const float> values, Wire& wire) {
  std::size_t k = 0;
  for (const std::uint64_t word : mask) k += static_cast<std::size_t>(std::popcount(word));
  const std::size_t n = bucket.shards.size();
  wire.up.resize(1);
  wire.down.resize(n);
  wire.up[0].resize(kHeaderBytes + SparseShape(bucket.size(), k).bytes);
  write_sparse(mask, values, k, wire.up[0].span().subspan(kHeaderBytes));
  wire.dense_mean.resize(4 * bucket.size());
}

void sparse_gather(Communicator& comm, const Bucket& bucket, const StepContext& ctx, Wire& wire) {
  const std::string where = concat("sparse_gather, bucket ", bucket.index);
  const Communicator::Scope scope(comm, where);
  const auto frame = wire.up[0].span();
  FrameHeader h = sparse_header(bucket, ctx.rank, ctx);
  h.poison = wire.poison;
  seal(h, frame.first(kHeaderBytes), {frame.subspan(kHeaderBytes)});
  gather(comm, bucket, where, wire);

  // every rank sees every rank's poison here, so all choose the same one
  std::optional<Poison> first;
  for (int r = 0; r < ctx.world; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const auto seen = r == ctx.rank ? wire.poison
                                    : open_frame(wire.down[i].span(), {wire.in[i].span()},
                                                 sparse_header(bucket, r, ctx), ctx, where);
    if (seen && !first) first = seen;
  }
  wire.poison = first;
  if (wire.poison) return;

  const auto mean = floats_of(wire.dense_mean);
  std::fill(mean.begin(), mean.end(), 0.0f);
  for (int r = 0; r < ctx.world; ++r) {
    const auto payload = r == ctx.rank ? std::span<const std::byte>(frame.subspan(kHeaderBytes))
                                       : wire.in[static_cast<std::size_t>(r)].span();
    add_sparse(payload, r, where, mean);
  }
  const float* rows[] = {mean.data()};
  kernels::mean_rows(rows, ctx.world, mean);
  wire.poison = check_mean(bucket, mean);
}

std::span<const float> mean_of_sparse(const Wire& wire) { return floats_of(wire.dense_mean); }

Cost sparse_cost(std::span<const Bucket> buckets, std::size_t n_entries) {
  Cost cost;
  cost.exact = false;
  if (buckets.empty()) return cost;
  std::size_t n = 0;
  for (const Bucket& bucket : buckets) n += bucket.size();
  const std::uint64_t frames =
      buckets.size() * kHeaderBytes + sparse_bytes_bound(n, n_entries, buckets.size());
  cost.bytes_up = (buckets.front().shards.size() - 1) * frames;
  return cost;
}

}  // namespace pride::exchange
