// The sharded count of signs: what averaging needs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "codecs/counts.h"
#include "codecs/payload.h"
#include "exchange/frames.h"
#include "exchange/sign_frames.h"
#include "exchange/sign_vote.h"
#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::exchange {
namespace {

// How many ranks are present: per piece, and per block of the sparse pieces.
void count_present(const Shard& shard, std::span<const Run> runs, const Wire& wire,
                   const StepContext& ctx, const CountFrame& at, std::span<std::byte> out) {
  const auto parts = words_at(out, at.present_at, (at.packed_at - at.present_at) / 8);
  std::fill(parts.begin(), parts.end(), 0);
  const auto by_piece = values_at<std::uint16_t>(out, at.present_at, shard.pieces.size());
  const auto by_block = values_at<std::uint16_t>(out, at.block_present_at, at.n_blocks);

  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    for (int r = 0; r < ctx.world; ++r) {
      const auto absent = words_at(frame_from(wire, r, ctx.rank), kHeaderBytes + 8 * (k / 64), 1);
      if (!bit_at(absent, k % 64)) ++by_piece[k];
    }
  }
  // runs cover the shard's words in order; blocks are the words of sparse pieces
  std::size_t word = 0, block = 0, run = 0;
  for (const Piece& piece : shard.pieces) {
    for (std::size_t w = 0; piece.sparse && w < piece.n_words(); ++w) {
      while (word + w >= runs[run].first_word + runs[run].n_words) ++run;
      by_block[block++] = static_cast<std::uint16_t>(runs[run].ranks.size());
    }
    word += piece.n_words();
  }
}

// Counts the ranks' signs of this rank's shard.
class Counter {
 public:
  Counter(const Shard& shard, const Wire& wire, const StepContext& ctx, std::size_t n_planes)
      : runs_(runs_of(shard, wire, ctx, true)),
        wire_(wire),
        ctx_(ctx),
        up_(shard),
        n_planes_(n_planes) {}

  std::span<const Run> runs() const { return runs_; }

  // Bit planes of words [first, first + n) of the shard, n words each, one plane after the other.
  void planes_of(std::size_t first, std::size_t n, std::span<std::uint64_t> planes) const {
    auto run = std::ranges::partition_point(
        runs_, [&](const Run& r) { return r.first_word + r.n_words <= first; });
    for (; run != runs_.end() && run->first_word < first + n; ++run) {
      const std::size_t begin = std::max(first, run->first_word);
      const std::size_t end = std::min(first + n, run->first_word + run->n_words);
      const auto rows = rows_of({begin, end - begin, run->ranks}, wire_, ctx_, up_);
      if (end - begin == n) {
        kernels::count(rows, n, n_planes_, planes);
      } else {
        count_part(rows, begin - first, end - begin, n, planes);
      }
    }
  }

 private:
  // A part of the words: its planes are not adjacent.
  void count_part(std::span<const std::uint64_t* const> rows, std::size_t at, std::size_t n,
                  std::size_t stride, std::span<std::uint64_t> planes) const {
    std::vector<std::uint64_t> part(n_planes_ * n);
    kernels::count(rows, n, n_planes_, part);
    for (std::size_t p = 0; p < n_planes_; ++p) {
      std::ranges::copy(std::span(part).subspan(p * n, n), planes.subspan(p * stride + at).begin());
    }
  }

  std::vector<Run> runs_;
  const Wire& wire_;
  const StepContext& ctx_;
  SignFrame up_;
  std::size_t n_planes_;
};

// A few groups at a time, so that their planes stay in the first cache until they are packed.
void pack_groups(const Counter& counter, const CountFrame& at, std::span<std::uint32_t> packed) {
  constexpr std::size_t kPlaneWords = 512;
  if (at.n_groups == 0) return;
  const std::size_t n_digits = at.radix.n_digits,
                    some = std::max<std::size_t>(1, kPlaneWords / n_digits);
  std::vector<std::uint64_t> planes(at.n_planes * some * n_digits);
  for (std::size_t g = 0; g < at.n_groups; g += some) {
    const std::size_t n = std::min(some, at.n_groups - g), n_words = n * n_digits;
    const auto part = std::span(planes).first(at.n_planes * n_words);
    counter.planes_of(g * n_digits, n_words, part);
    kernels::pack_digits(part, at.n_planes, n_words, at.radix, packed.subspan(64 * g, 64 * n));
  }
}

void count_shard(const Shard& shard, const StepContext& ctx, CountForm form, Wire& wire) {
  const CountFrame at(shard, ctx.world, form);
  const auto out = wire.down[static_cast<std::size_t>(ctx.rank)].span();
  const Counter counter(shard, wire, ctx, at.n_planes);
  count_present(shard, counter.runs(), wire, ctx, at, out);
  pack_groups(counter, at, values_at<std::uint32_t>(out, at.packed_at, 64 * at.n_groups));
  const auto planes = words_at(out, at.planes_at, at.n_planes * at.plane_words);
  counter.planes_of(at.packed_words, at.plane_words, planes);
}

// x: the parameters of the range.
void apply_range(const CountRange& range, std::span<const std::byte> frame, const CountFrame& at,
                 const StepContext& ctx, kernels::Step step, std::span<float> x) {
  if (range.present == 0) return kernels::apply_decay(step.decay, x);
  const std::size_t packed_words =
      at.packed_words - std::min(at.packed_words, range.first_word);  // from the range's start on
  const std::size_t n_packed = std::min(x.size(), 64 * packed_words);
  if (n_packed > 0) {
    const auto packed = values_at<std::uint32_t>(frame, at.packed_at, 64 * at.n_groups);
    kernels::apply_packed_counts(packed, at.radix, range.first_word, range.present, ctx.world, step,
                                 x.first(n_packed));
  }
  if (n_packed < x.size()) {
    const auto planes = words_at(frame, at.planes_at, at.n_planes * at.plane_words);
    const std::size_t first = range.first_word + n_packed / 64 - at.packed_words;
    kernels::apply_counts(planes.subspan(first), at.n_planes, at.plane_words, range.present,
                          ctx.world, step, x.subspan(n_packed));
  }
}

void apply_shard(const Shard& shard, std::span<const std::byte> frame, const StepContext& ctx,
                 CountForm form, View param) {
  const CountFrame at(shard, ctx.world, form);
  for (const CountRange& range : count_ranges(frame, shard, at)) {
    const auto group = static_cast<std::size_t>(shard.pieces[range.piece].group);
    const StepScalars& s = ctx.groups[group];
    apply_range(range, frame, at, ctx, {s.decay, s.lr}, param.f32(range.begin, range.end));
  }
}

}  // namespace

void prepare_count(const Bucket& bucket, const StepContext& ctx, CountForm form, Wire& wire) {
  prepare_signs(bucket, wire);
  wire.down.resize(bucket.shards.size());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    wire.down[j].resize(CountFrame(bucket.shards[j], ctx.world, form).bytes);
  }
}

void sign_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx, CountForm form,
                Wire& wire) {
  const Communicator::Scope scope(comm, concat("sign_count, bucket ", bucket.index));
  send_up(comm, Codec::kSign, bucket, ctx, {}, wire);
  if (wire.poison) return;
  check_up(Codec::kSign, bucket, ctx, wire, check_signs);
  const Codec codec = count_codec(ctx.world, form);
  count_shard(bucket.shards[static_cast<std::size_t>(ctx.rank)], ctx, form, wire);
  send_down(comm, codec, bucket, ctx, {}, std::nullopt, wire);
  if (wire.poison) return;
  check_down(codec, bucket, ctx, wire, [&](const ReceivedFrame& f) {
    check_counts(f, ctx.world, form);
    check_present(f, ctx.world, ctx.absent);
  });
}

void apply_count(const Bucket& bucket, const Wire& wire, const StepContext& ctx, CountForm form,
                 View param) {
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    apply_shard(bucket.shards[j], wire.down[j].span(), ctx, form, param);
  }
}

Cost count_cost(std::span<const Bucket> buckets, int rank, CountForm form) {
  const int world = buckets.empty() ? 1 : static_cast<int>(buckets.front().shards.size());
  return sign_cost(buckets, rank,
                   [=](const Shard& shard) { return CountFrame(shard, world, form).bytes; });
}

}  // namespace pride::exchange
