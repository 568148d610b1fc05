// The mean gradient: a sharded sum in rank order, or the transport's own.
// SPDX-License-Identifier: Apache-2.0
#include "methods/dense_mean.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/kernels.h"
#include "pride/bf16.h"

namespace pride {

NonFinite overflow_at(const Shard& shard, std::size_t index) {
  const auto piece = std::ranges::find_if(
      shard.pieces, [&](const Piece& p) { return shard.begin + index < p.end; });
  return {NonFinite::kSum,
          piece == shard.pieces.end() ? 0 : static_cast<std::uint32_t>(piece->tensor)};
}

}  // namespace pride

namespace pride::methods {
namespace {

constexpr std::size_t kChunk = 1024;  // numbers to widen or scale at a time, in the L1 cache
constexpr int kFrames = 0, kSum = 1;  // ids of the parts

using Chunk = std::array<float, kChunk>;

template <typename T>
std::span<const T> numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
std::span<T> numbers(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

std::span<const float> widened(std::span<const BFloat16> narrow, std::span<float> block) {
  to_float(narrow, block.first(narrow.size()));
  return block.first(narrow.size());
}
std::span<const float> widened(std::span<const float> values, std::span<float>) { return values; }

// Index of the first number that is NaN or Inf, or kAllFinite.
template <typename T>
std::size_t first_bad(std::span<const T> values) {
  alignas(64) Chunk block;
  for (std::size_t at = 0; at < values.size(); at += kChunk) {
    const auto part = values.subspan(at, std::min(kChunk, values.size() - at));
    const std::size_t bad = kernels::first_non_finite(widened(part, block));
    if (bad != kernels::kAllFinite) return at + bad;
  }
  return kernels::kAllFinite;
}

template <typename T>
void check_finite(const ReceivedFrame& f) {
  const auto mean = numbers<T>(f.frame.body);
  const std::size_t bad = first_bad(mean);
  if (bad == kernels::kAllFinite) return;
  alignas(64) Chunk block;
  f.refuse("has ", widened(mean.subspan(bad, 1), block)[0], " at coordinate ", f.shard.begin + bad,
           " and does not report it");
}

// Checks a worker's frame: the tensors that it uses, with their padding.
template <typename T>
void check_finite_used(const ReceivedFrame& f) {
  const auto values = numbers<T>(f.frame.body);
  const auto unused = unused_bits(f.frame.head.data(), f.shard);
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& p = f.shard.pieces[k];
    if (bit_at(unused, k)) continue;
    const std::size_t first = 64 * p.first_word;
    const auto used = values.subspan(first, 64 * p.n_words());
    const std::size_t bad = first_bad(used);
    if (bad == kernels::kAllFinite) continue;
    alignas(64) Chunk block;
    f.refuse("has ", widened(used.subspan(bad, 1), block)[0], " at coordinate ",
             f.shard.begin + first + bad, ", in tensor ", p.tensor, ": a ballot must be finite");
  }
}

// out = mean of the rows. Returns the index of a non-finite number, or kAllFinite.
std::size_t mean_of_rows(std::span<const float* const> rows, int voters, std::span<float> out) {
  kernels::mean_rows(rows, voters, out);
  return kernels::first_non_finite(out);
}

// The same in bfloat16: summed in float32, in row order; the mean is rounded.
std::size_t mean_of_rows(std::span<const BFloat16* const> rows, int voters,
                         std::span<BFloat16> out) {
  alignas(64) Chunk sums, terms;
  for (std::size_t at = 0; at < out.size(); at += kChunk) {
    const std::size_t n = std::min(kChunk, out.size() - at);
    const auto sum = std::span(sums).first(n), term = std::span(terms).first(n);
    to_float({rows[0] + at, n}, sum);
    const float* const both[] = {sum.data(), term.data()};
    for (const BFloat16* row : rows.subspan(1)) {
      to_float({row + at, n}, term);
      kernels::sum_rows(both, sum);
    }
    kernels::mean_rows(std::span(both).first(1), voters, sum);
    to_bf16(sum, out.subspan(at, n));
  }
  return first_bad(std::span<const BFloat16>(out));
}

void narrowed(std::span<const float> values, std::span<float> out) {
  std::ranges::copy(values, out.begin());
}
void narrowed(std::span<const float> values, std::span<BFloat16> out) { to_bf16(values, out); }

// The bucket's gradients side by side; unused tensors and padding are zero.
template <typename T>
void gather(const Bucket& bucket, const StepContext& ctx, const GradientView& grad,
            std::span<T> out) {
  std::size_t end = 0;  // of the part written so far
  for (const Shard& shard : bucket.shards) {
    for (const Piece& p : shard.pieces) {
      if (ctx.is_unused(p.tensor)) continue;
      const std::size_t first = p.begin - bucket.begin;
      std::ranges::fill(out.subspan(end, first - end), T{});
      grad.for_blocks(p.tensor, p.begin, p.end, [&](std::size_t at, std::span<const float> g) {
        narrowed(g, out.subspan(at - bucket.begin, g.size()));
      });
      end = first + p.n();
    }
  }
  std::ranges::fill(out.subspan(end), T{});
}

// out = (sum of weight * row) / votes; without weights each is 1. Computed in double in row order
// and rounded once: products are exact, and the mean of finite numbers is finite.
template <typename T>
void weighted_mean(std::span<const T* const> rows, std::span<const int> weights, int votes,
                   std::span<T> out) {
  std::array<double, kChunk> sums;
  alignas(64) Chunk block;
  for (std::size_t at = 0; at < out.size(); at += kChunk) {
    const std::size_t n = std::min(kChunk, out.size() - at);
    std::fill_n(sums.begin(), n, 0.0);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double weight = weights.empty() ? 1 : weights[r];
      const auto row = widened({rows[r] + at, n}, block);
      for (std::size_t i = 0; i < n; ++i) sums[i] += weight * static_cast<double>(row[i]);
    }
    for (std::size_t i = 0; i < n; ++i) block[i] = static_cast<float>(sums[i] / votes);
    narrowed(std::span<const float>(block).first(n), out.subspan(at, n));
  }
}

// The mean of the shard over all voters; ranks that do not use a tensor count as zero.
template <typename T>
void serve_mean(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                Reply& reply) {
  const std::span<T> mean(reinterpret_cast<T*>(reply.body.data()), shard.size());
  for (const Run& run : runs_of(shard, voters.frames)) {
    const auto out = mean.subspan(64 * run.first_word, 64 * run.n_words);
    if (run.frames.empty()) {
      std::ranges::fill(out, T{});
      continue;
    }
    std::vector<const T*> rows;
    std::vector<int> weights;
    for (const std::size_t i : run.frames) {
      rows.push_back(numbers<T>(voters.frames[i].body).data() + 64 * run.first_word);
      if (!shared.weights.empty()) weights.push_back(shared.weights[i]);
    }
    const bool equal = weights.empty();
    const std::size_t bad = equal ? mean_of_rows(rows, shared.voters, out) : 0;
    if (equal && bad == kernels::kAllFinite) continue;
    if (shared.central) {  // a coordinator drops no step
      weighted_mean<T>(rows, weights, shared.votes(), out);
      continue;
    }
    // no frame has the non-finite flag here: refuse one that should have it, else the sum overflows
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const ReceivedFrame f{voters.frames[run.frames[r]], shard, static_cast<int>(run.frames[r]),
                            voters.where};
      check_finite<T>(f);
    }
    if (!reply.non_finite) reply.non_finite = overflow_at(shard, 64 * run.first_word + bad);
  }
}

}  // namespace

std::vector<Part> DenseMean::parts(const Bucket& bucket, bool central) const {
  if (levels_) return levels_->parts(bucket);
  const bool narrow = kind_ == Dense::kBf16;
  const std::size_t width = kind_ == Dense::kNative ? 0 : narrow ? sizeof(BFloat16) : sizeof(float);
  FrameKind up = unused_bits_frames(narrow ? Codec::kDenseBf16 : Codec::kDense,
                                    narrow ? "dense bf16" : "dense", width);
  FrameKind down = unused_bits_frames(narrow ? Codec::kMeanBf16 : Codec::kMean,
                                      narrow ? "mean bf16" : "mean", width);
  if (kind_ == Dense::kOrdered) down.check = check_finite<float>;
  if (narrow) down.check = check_finite<BFloat16>;
  if (central) up.check = narrow ? check_finite_used<BFloat16> : check_finite_used<float>;
  std::vector<Part> parts;
  parts.push_back(sharded_part(bucket, std::move(up), std::move(down)));
  if (kind_ != Dense::kNative) return parts;
  parts.push_back(native_part(bucket, Sum::kFloat32));
  parts.back().id = kSum;
  return parts;
}

// Float32 gradients of one flat buffer are sent from there. Others are gathered in `room`, whose
// second half receives the means; a native sum replaces them in place.
void DenseMean::encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const {
  if (levels_) return levels_->encode(bucket, ctx, flight);
  Wire& frames = flight.wire(kFrames);
  ByteBuffer& room = flight.wire(kind_ == Dense::kNative ? kSum : kFrames).room;
  const bool narrow = kind_ == Dense::kBf16, native = kind_ == Dense::kNative;
  const bool in_place = flight.grad.places == nullptr && !narrow && !native && space_.is_host();
  const std::size_t width = narrow ? sizeof(BFloat16) : sizeof(float),
                    n_bytes = width * bucket.size();
  room.resize(in_place || native ? n_bytes : 2 * n_bytes, *ctx.memory);
  std::span<const std::byte> values = room.span().first(n_bytes);
  if (!space_.is_host()) {
    encode_on_device(bucket, ctx, flight, room);
  } else if (in_place) {
    values = std::as_bytes(std::span(flight.grad.flat + bucket.begin, bucket.size()));
  } else if (narrow) {
    gather(bucket, ctx, flight.grad, numbers<BFloat16>(room.span().first(n_bytes)));
  } else {
    gather(bucket, ctx, flight.grad, numbers<float>(room.span().first(n_bytes)));
  }
  const std::span<std::byte> means = room.span().last(n_bytes);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const std::size_t at = width * (shard.begin - bucket.begin), n = width * shard.size();
    if (kind_ != Dense::kNative) {
      frames.up_body[j] = values.subspan(at, n);
      frames.down_body[j] = means.subspan(at, n);
    }
    for (const Piece& p : shard.pieces) {
      if (ctx.is_unused(p.tensor) || frames.non_finite || !space_.is_host()) continue;
      const std::size_t first = p.begin - bucket.begin;
      const std::size_t bad = narrow ? first_bad(numbers<BFloat16>(values).subspan(first, p.n()))
                                     : first_bad(numbers<float>(values).subspan(first, p.n()));
      if (bad == kernels::kAllFinite) continue;
      frames.non_finite = NonFinite{ctx.rank, static_cast<std::uint32_t>(p.tensor)};
    }
  }
}

void DenseMean::encode_on_device(const Bucket& bucket, const StepContext& ctx, Flight& flight,
                                 ByteBuffer& room) const {
  space_.begin_frames();
  Wire& frames = flight.wire(kFrames);
  std::uint32_t* const watched = space_.watch(frames.fault_word());
  const auto frame = room.floats().first(bucket.size());
  const auto staged = space_.stage(frame);
  std::size_t written = 0;
  const auto clear_to = [&](std::size_t end) {  // unused tensors and padding
    space_.run(kernels::Fill{staged.subspan(written, end - written), 0});
  };
  for (const Shard& shard : bucket.shards) {
    for (const Piece& p : shard.pieces) {
      if (ctx.is_unused(p.tensor)) continue;
      const std::size_t first = p.begin - bucket.begin;
      clear_to(first);
      space_.run(kernels::Widen{flight.grad.of(p), staged.subspan(first, p.n())});
      space_.run(
          kernels::CheckFinite{flight.grad.of(p), {watched, static_cast<std::uint32_t>(p.tensor)}});
      written = first + p.n();
    }
  }
  clear_to(bucket.size());
  space_.send(staged, frame);
  space_.report(watched, frames.fault_word());
}

// g = mean over ranks
void DenseMean::serve(const Part& part, const Shard& shard, const VoterFrames& voters,
                      const SharedContext& shared, Reply& reply) const {
  if (levels_) return levels_->serve(shard, voters, shared, reply);
  if (part.id == kSum) {
    const std::span sum(reinterpret_cast<float*>(reply.body.data()), shard.size());
    const float* rows[] = {sum.data()};
    const std::size_t bad = mean_of_rows(rows, shared.voters, sum);
    if (bad != kernels::kAllFinite) reply.non_finite = overflow_at(shard, bad);
    return;
  }
  mark_unused_by_all(voters.frames, shard, unused_bits(reply.head.data(), shard));
  if (kind_ == Dense::kOrdered) serve_mean<float>(shard, voters, shared, reply);
  if (kind_ == Dense::kBf16) serve_mean<BFloat16>(shard, voters, shared, reply);
}

// The means of all shards, whose bodies are contiguous.
std::span<const std::byte> DenseMean::means(const Bucket& bucket, const Flight& flight) const {
  if (kind_ == Dense::kNative) return flight.wire(kSum).room.span();
  const std::size_t width = kind_ == Dense::kBf16 ? sizeof(BFloat16) : sizeof(float);
  return {flight.wire(kFrames).down_body[0].data(), width * bucket.size()};
}

// Flat coordinates [begin, begin + n) of the mean; in bfloat16 widened into the block.
std::span<const float> DenseMean::mean_of(const Bucket& bucket, const Flight& flight,
                                          std::size_t begin, std::size_t n,
                                          std::span<float> block) const {
  const auto all = means(bucket, flight);
  const std::size_t first = begin - bucket.begin;
  if (kind_ != Dense::kBf16) return numbers<float>(all).subspan(first, n);
  return widened(numbers<BFloat16>(all).subspan(first, n), block);
}

void DenseMean::visit(const Bucket& bucket, const Flight& flight, const VisitBlock& visit) const {
  if (levels_) return levels_->visit(bucket, flight, visit);
  alignas(64) Chunk block;
  for (std::size_t at = bucket.begin; at < bucket.end; at += kChunk) {
    visit(mean_of(bucket, flight, at, std::min(kChunk, bucket.end - at), block));
  }
}

void DenseMean::apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                      rules::Rule& rule, View x) const {
  if (levels_) return levels_->apply(bucket, flight, ctx, rule, x);
  space_.begin_frames();
  const auto mean = space_.upload(means(bucket, flight));
  const DType dtype = kind_ == Dense::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const auto unused = unused_bits(flight.wire(kFrames).down[j].span().data(), bucket.shards[j]);
    for (std::size_t k = 0; k < bucket.shards[j].pieces.size(); ++k) {
      const Piece& p = bucket.shards[j].pieces[k];
      const StepScalars s = ctx.scalars_of(p);
      if (bit_at(unused, k)) {
        space_.run(kernels::ApplyDecay{s.decay.same, x.of(p)});
        continue;
      }
      const std::byte* first = mean.data() + (p.begin - bucket.begin) * size_of(dtype);
      rule.step(p.begin, {first, p.n(), dtype, ctx.grad_scale}, s, x.of(p));
    }
  }
}

}  // namespace pride::methods
