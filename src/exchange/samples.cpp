// SPDX-License-Identifier: Apache-2.0
#include "exchange/samples.h"

#include <algorithm>

#include "codecs/payload.h"
#include "exchange/frames.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// Payload: the blends, the momenta, float32 each, then the levels, a byte each, up to a whole word.
struct SampleFrame {
  explicit SampleFrame(std::size_t count)
      : n(count), u_at(kHeaderBytes), m_at(u_at + 4 * n), q_at(m_at + 4 * n) {
    bytes = kHeaderBytes + (9 * n + 7) / 8 * 8;
  }
  std::size_t n, u_at, m_at, q_at, bytes = 0;
};

// Frames are told apart by the bucket; every rank has all of the samples, so a "shard" is all.
Bucket bucket_of(std::size_t n, int world, int index) {
  Bucket bucket{.index = index, .begin = 0, .end = n, .shards = {}};
  bucket.shards.assign(static_cast<std::size_t>(world), {.begin = 0, .end = n, .pieces = {}});
  return bucket;
}

void check_samples(const ReceivedFrame& f, std::size_t n) {
  const SampleFrame at(n);
  const auto floats = values_at<float>(f.frame, at.u_at, 2 * n);
  const std::size_t bad = kernels::first_non_finite(floats);
  if (bad != kernels::kAllFinite) {
    throw CommError(concat(f.where, ": the frame from rank ", f.from, " has ", floats[bad],
                           " as sample ", bad % n));
  }
  const auto padding = f.frame.subspan(at.q_at + n);
  if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; })) {
    throw CommError(
        concat(f.where, ": the frame from rank ", f.from, " has bits set behind its samples"));
  }
}

}  // namespace

Samples prepare_samples(std::size_t n, const StepContext& ctx, Wire& wire) {
  const SampleFrame at(n);
  wire.up.resize(static_cast<std::size_t>(ctx.world));
  wire.in.resize(wire.up.size());
  for (std::size_t j = 0; j < wire.up.size(); ++j) {
    wire.up[j].resize(at.bytes);
    if (static_cast<int>(j) != ctx.rank) wire.in[j].resize(at.bytes);
  }
  const auto mine = wire.up[static_cast<std::size_t>(ctx.rank)].span();
  std::ranges::fill(mine, std::byte{0});
  return own_samples(n, ctx, wire);
}

Samples own_samples(std::size_t n, const StepContext& ctx, Wire& wire) {
  const SampleFrame at(n);
  const auto mine = wire.up[static_cast<std::size_t>(ctx.rank)].span();
  return {values_at<float>(mine, at.u_at, n), values_at<float>(mine, at.m_at, n),
          values_at<std::int8_t>(mine, at.q_at, n)};
}

void share_samples(Communicator& comm, int bucket, const StepContext& ctx, std::size_t n,
                   Wire& wire) {
  if (n == 0) return;
  const Communicator::Scope scope(comm, concat("share_samples, bucket ", bucket));
  const Bucket all = bucket_of(n, ctx.world, bucket);
  const auto mine = wire.up[static_cast<std::size_t>(ctx.rank)].span();
  for (std::size_t j = 0; j < wire.up.size(); ++j) {
    if (static_cast<int>(j) != ctx.rank) std::ranges::copy(mine, wire.up[j].span().begin());
  }
  wire.poison.reset();
  send_up(comm, Codec::kSamples, all, ctx, {}, wire);
  check_up(Codec::kSamples, all, ctx, wire, [n](const ReceivedFrame& f) { check_samples(f, n); });
}

ReceivedSamples samples_of(const Wire& wire, int r, const StepContext& ctx, std::size_t n) {
  const SampleFrame at(n);
  const auto frame = frame_from(wire, r, ctx.rank);
  return {values_at<float>(frame, at.u_at, n), values_at<float>(frame, at.m_at, n),
          values_at<std::int8_t>(frame, at.q_at, n)};
}

Cost samples_cost(std::size_t n, int world) {
  Cost cost;
  if (n > 0) cost.bytes_up = static_cast<std::uint64_t>(world - 1) * SampleFrame(n).bytes;
  return cost;
}

}  // namespace pride::exchange
