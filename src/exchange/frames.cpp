// Sends, receives and checks frames, and finds who takes part in what.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/frames.h"

#include <algorithm>

#include "codecs/payload.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

constexpr int kFrameTag = 1;
constexpr int kFloatTag = 2;

// Frames to and from every peer, then the floats that belong to them; all in flight at once.
void swap_with_peers(Communicator& comm, const std::vector<std::span<const std::byte>>& send,
                     const std::vector<std::span<std::byte>>& recv, const Floats& floats) {
  const int n = comm.size();
  const int me = comm.rank();
  std::vector<Ticket> pending;
  pending.reserve(static_cast<std::size_t>(4 * n));
  for (int d = 1; d < n; ++d) {
    const int from = (me - d + n) % n;
    const auto i = static_cast<std::size_t>(from);
    pending.push_back(comm.start_recv(from, kFrameTag, recv[i]));
    if (!floats.recv.empty() && !floats.recv[i].empty()) {
      pending.push_back(comm.start_recv(from, kFloatTag, floats.recv[i]));
    }
  }
  for (int d = 1; d < n; ++d) {
    const int to = (me + d) % n;
    const auto i = static_cast<std::size_t>(to);
    pending.push_back(comm.start_send(to, kFrameTag, send[i]));
    if (!floats.send.empty() && !floats.send[i].empty()) {
      pending.push_back(comm.start_send(to, kFloatTag, floats.send[i]));
    }
  }
  comm.wait_all(pending);
}

Payload payload_of(std::span<const std::byte> frame, std::span<const std::byte> floats) {
  return {frame.subspan(kHeaderBytes), floats};
}

std::span<const std::byte> sent_floats(const Floats& floats, std::size_t i) {
  return floats.send.empty() ? std::span<const std::byte>{} : floats.send[i];
}

std::span<const std::byte> received_floats(const Floats& floats, std::size_t i) {
  return floats.recv.empty() ? std::span<const std::byte>{} : floats.recv[i];
}

// Frames that have piece k present.
std::vector<int> frames_with_piece(const Frames& frames, std::size_t k) {
  std::vector<int> which;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const auto absent = words_at(frames[i], kHeaderBytes + 8 * (k / 64), 1);
    if (!bit_at(absent, k % 64)) which.push_back(static_cast<int>(i));
  }
  return which;
}

void append(std::vector<Run>& runs, std::size_t first, std::size_t n,
            const std::vector<int>& ranks) {
  if (!runs.empty() && runs.back().ranks == ranks) {
    runs.back().n_words += n;
  } else {
    runs.push_back({first, n, ranks});
  }
}

}  // namespace

std::string phase_name(Codec codec, const Bucket& bucket) {
  return concat(codec_name(codec), " frames of bucket ", bucket.index);
}

FrameHeader header_of(Codec codec, const Bucket& bucket, const Shard& shard, int sender,
                      const StepContext& ctx) {
  FrameHeader h;
  h.codec = codec;
  h.bucket = static_cast<std::uint32_t>(bucket.index);
  h.rank = static_cast<std::uint16_t>(sender);
  h.step = static_cast<std::uint64_t>(ctx.step);
  h.n_coords = shard.size();
  h.scalars = ctx.scalars_digest;
  return h;
}

std::optional<Poison> open_frame(std::span<const std::byte> header, const Payload& payload,
                                 const FrameHeader& expected, const StepContext& ctx,
                                 const std::string& where) {
  const auto poison = open(header, payload, expected, where);
  if (!poison) return poison;
  const bool known = poison->tensor < ctx.absent.size() && poison->rank < ctx.world &&
                     (poison->rank >= 0 || poison->rank == Poison::kSum);
  if (known) return poison;
  throw CommError(concat(where, ": the frame from rank ", expected.rank, " reports tensor ",
                         poison->tensor, " on rank ", poison->rank, " as not finite; there are ",
                         ctx.absent.size(), " tensors and ", ctx.world, " ranks"));
}

std::span<const std::byte> frame_from(const Wire& wire, int i, int rank) {
  const auto index = static_cast<std::size_t>(i);
  return i == rank ? wire.up[index].span() : wire.in[index].span();
}

namespace {

// Opens what came from every other rank about the shard. Every rank sees every rank's poison here,
// so all choose the same one.
void open_all(Codec codec, const Bucket& bucket, const Shard& shard, const StepContext& ctx,
              const Floats& floats, Wire& wire) {
  const std::string where = phase_name(codec, bucket);
  std::optional<Poison> first;
  for (std::size_t i = 0; i < static_cast<std::size_t>(ctx.world); ++i) {
    std::optional<Poison> seen = wire.poison;
    if (static_cast<int>(i) != ctx.rank) {
      const auto frame = wire.in[i].span();
      seen = open_frame(frame.first(kHeaderBytes), payload_of(frame, received_floats(floats, i)),
                        header_of(codec, bucket, shard, static_cast<int>(i), ctx), ctx, where);
    }
    if (seen && !first) first = seen;
  }
  wire.poison = first;
}

}  // namespace

void send_up(Communicator& comm, Codec codec, const Bucket& bucket, const StepContext& ctx,
             const Floats& floats, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  const auto me = static_cast<std::size_t>(ctx.rank);
  const Shard& mine = bucket.shards[me];
  std::vector<std::span<const std::byte>> send(n);
  std::vector<std::span<std::byte>> recv(n);
  wire.in.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    const auto frame = wire.up[j].span();
    FrameHeader h = header_of(codec, bucket, bucket.shards[j], ctx.rank, ctx);
    h.poison = wire.poison;
    // our own frame goes nowhere: its checksum would only be checked by ourselves
    if (j == me) continue;
    seal(h, frame.first(kHeaderBytes), payload_of(frame, sent_floats(floats, j)));
    send[j] = frame;
    wire.in[j].resize(wire.up[me].size());
    recv[j] = wire.in[j].span();
  }
  swap_with_peers(comm, send, recv, floats);

  open_all(codec, bucket, mine, ctx, floats, wire);
}

void send_to_all(Communicator& comm, Codec codec, const Bucket& bucket, const Shard& whole,
                 const StepContext& ctx, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  const auto me = static_cast<std::size_t>(ctx.rank);
  const auto mine = wire.up[me].span();
  std::vector<std::span<const std::byte>> send(n);
  std::vector<std::span<std::byte>> recv(n);
  if (n > 1) {
    FrameHeader h = header_of(codec, bucket, whole, ctx.rank, ctx);
    h.poison = wire.poison;
    seal(h, mine.first(kHeaderBytes), payload_of(mine, {}));
  }
  wire.in.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    if (j == me) continue;
    send[j] = mine;
    wire.in[j].resize(mine.size());
    recv[j] = wire.in[j].span();
  }
  swap_with_peers(comm, send, recv, {});
  open_all(codec, bucket, whole, ctx, {}, wire);
}

void send_down(Communicator& comm, Codec codec, const Bucket& bucket, const StepContext& ctx,
               const Floats& floats, std::optional<Poison> result_poison, Wire& wire) {
  const auto n = static_cast<std::size_t>(ctx.world);
  const auto me = static_cast<std::size_t>(ctx.rank);
  const auto mine = wire.down[me].span();
  std::vector<std::span<const std::byte>> send(n);
  std::vector<std::span<std::byte>> recv(n);
  if (n > 1) {
    FrameHeader h = header_of(codec, bucket, bucket.shards[me], ctx.rank, ctx);
    h.poison = result_poison;
    const std::size_t peer = me == 0 ? 1 : 0;  // all peers get the same bytes
    seal(h, mine.first(kHeaderBytes), payload_of(mine, sent_floats(floats, peer)));
  }
  for (std::size_t j = 0; j < n; ++j) {
    if (j == me) continue;
    send[j] = mine;
    recv[j] = wire.down[j].span();
  }
  swap_with_peers(comm, send, recv, floats);

  const std::string where = phase_name(codec, bucket);
  std::optional<Poison> first;
  for (std::size_t j = 0; j < n; ++j) {
    std::optional<Poison> seen = result_poison;
    if (j != me) {
      const auto frame = wire.down[j].span();
      const FrameHeader expected =
          header_of(codec, bucket, bucket.shards[j], static_cast<int>(j), ctx);
      seen = open_frame(frame.first(kHeaderBytes), payload_of(frame, received_floats(floats, j)),
                        expected, ctx, where);
    }
    if (seen && !first) first = seen;
  }
  wire.poison = first;
}

void check_up(Codec codec, const Bucket& bucket, const StepContext& ctx, const Wire& wire,
              const PayloadCheck& check) {
  check_from_all(codec, bucket, bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, wire,
                 check);
}

void check_from_all(Codec codec, const Bucket& bucket, const Shard& whole, const StepContext& ctx,
                    const Wire& wire, const PayloadCheck& check) {
  const std::string where = phase_name(codec, bucket);
  for (int r = 0; r < ctx.world; ++r) {
    if (r != ctx.rank) check({frame_from(wire, r, ctx.rank), whole, r, where});
  }
}

void check_down(Codec codec, const Bucket& bucket, const StepContext& ctx, const Wire& wire,
                const PayloadCheck& check) {
  const std::string where = phase_name(codec, bucket);
  for (int j = 0; j < ctx.world; ++j) {
    const auto index = static_cast<std::size_t>(j);
    if (j != ctx.rank) check({wire.down[index].span(), bucket.shards[index], j, where});
  }
}

Frames all_frames(const Wire& wire, const StepContext& ctx) {
  Frames frames;
  for (int r = 0; r < ctx.world; ++r) frames.push_back(frame_from(wire, r, ctx.rank));
  return frames;
}

std::vector<Run> runs_of(const Shard& shard, const Wire& wire, const StepContext& ctx) {
  return runs_of(shard, all_frames(wire, ctx));
}

std::vector<Run> runs_of(const Shard& shard, const Frames& frames) {
  std::vector<Run> runs;
  std::size_t word = 0;  // of the shard
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    append(runs, word, shard.pieces[k].n_words(), frames_with_piece(frames, k));
    word += shard.pieces[k].n_words();
  }
  return runs;
}

}  // namespace pride::exchange
