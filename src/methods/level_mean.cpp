// SPDX-License-Identifier: Apache-2.0
#include "methods/level_mean.h"

#include <algorithm>
#include <array>

#include "kernels/kernels.h"

namespace pride::methods {
namespace {

constexpr int kLevelFrames = 0;         // id of the part
constexpr std::size_t kDecoded = 1024;  // values to decode at a time, in the L1 cache

using Decoded = std::array<float, kDecoded>;
using Rows = std::span<const ValueView<const std::byte>>;

bool any_unused(const Shard& shard, const StepContext& ctx) {
  return std::ranges::any_of(shard.pieces, [&](const Piece& p) { return ctx.is_unused(p.tensor); });
}

// out = (sum of the rows in order) / voters. `first`: of the shard's values.
void mean_of_levels(Rows rows, std::size_t first, int voters, std::span<float> out) {
  alignas(64) Decoded term;
  const auto next = std::span(term).first(out.size());
  const float* const both[] = {out.data(), next.data()};
  read_values(Space::host(), rows[0], first, out);
  for (const auto& row : rows.subspan(1)) {
    read_values(Space::host(), row, first, next);
    kernels::sum_rows(both, out);
  }
  kernels::mean_rows(std::span(both).first(1), voters, out);
}

// out = (sum of weight * row) / votes, in double; without weights each is 1. Kept where a scale and
// its largest level are finite.
void weighted_levels(Rows rows, std::span<const int> weights, std::size_t first, int votes,
                     std::span<float> out) {
  constexpr double kMost = 0x1.fp127;
  std::array<double, kDecoded> sums = {};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double weight = weights.empty() ? 1 : weights[r];
    read_values(Space::host(), rows[r], first, out);
    for (std::size_t i = 0; i < out.size(); ++i) sums[i] += weight * static_cast<double>(out[i]);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(std::clamp(sums[i] / votes, -kMost, kMost));
  }
}

void clear(const ValueView<std::byte>& frame) {
  std::ranges::fill(frame.scales, BFloat16{});
  std::ranges::fill(frame.lines, std::uint64_t{0});
}

}  // namespace

std::vector<Part> LevelMean::parts(const Bucket& bucket) const {
  std::vector<Part> parts;
  parts.push_back(sharded_part(bucket, gradient_frames(Codec::kGradientLevels, format_),
                               gradient_frames(Codec::kMeanLevels, format_)));
  return parts;
}

void LevelMean::encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const {
  space_.begin_frames();
  Wire& wire = flight.wire(kLevelFrames);
  space_.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space_.watch(wire.fault_word());
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const std::span<std::byte> frame = wire.up[j].span();
    const auto staged = space_.stage(frame);
    const ValueView view(staged.data(), shard.size(), format_, shard.pieces.size());
    if (space_.is_host()) {  // a device begins with 0
      clear_padding(view.scales);
      if (any_unused(shard, ctx)) clear(view);
    }
    for (const Piece& p : shard.pieces) {
      if (ctx.is_unused(p.tensor)) continue;
      write_values(space_, flight.grad.of(p), view, 64 * p.first_word,
                   {watched, static_cast<std::uint32_t>(p.tensor)});
    }
    space_.send(staged, frame);
  }
  space_.report(watched, wire.fault_word());
}

void LevelMean::serve(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                      Reply& reply) const {
  const ValueView out(reply.head.data(), shard.size(), format_, shard.pieces.size());
  mark_unused_by_all(voters.frames, shard, out.unused);
  clear_padding(out.scales);
  const std::vector<Run> runs = runs_of(shard, voters.frames);
  if (std::ranges::any_of(runs, [](const Run& run) { return run.frames.empty(); })) clear(out);
  alignas(64) Decoded chunk;
  for (const Run& run : runs) {
    if (run.frames.empty()) continue;
    std::vector<ValueView<const std::byte>> rows;
    std::vector<int> weights;
    for (const std::size_t i : run.frames) {
      rows.push_back(means(shard, voters.frames[i].head));
      if (!shared.weights.empty()) weights.push_back(shared.weights[i]);
    }
    const std::size_t end = 64 * (run.first_word + run.n_words);
    for (std::size_t at = 64 * run.first_word; at < end; at += kDecoded) {
      const auto mean = std::span(chunk).first(std::min(kDecoded, end - at));
      if (weights.empty()) {
        mean_of_levels(rows, at, shared.voters, mean);
      } else {
        weighted_levels(rows, weights, at, shared.votes(), mean);
      }
      std::size_t bad = write_values(mean, format_, out, at);
      if (bad < mean.size() && shared.central) {  // a coordinator drops no step
        weighted_levels(rows, weights, at, shared.votes(), mean);
        bad = write_values(mean, format_, out, at);
      }
      if (bad < mean.size() && !reply.non_finite) reply.non_finite = overflow_at(shard, at + bad);
    }
  }
}

void LevelMean::visit(const Bucket& bucket, const Flight& flight,
                      const MeanGradient::VisitBlock& visit) const {
  alignas(64) Decoded chunk;
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const auto view = means(shard, flight.wire(kLevelFrames).down[j].span());
    for (std::size_t at = 0; at < shard.size(); at += kDecoded) {
      const auto mean = std::span(chunk).first(std::min(kDecoded, shard.size() - at));
      read_values(Space::host(), view, at, mean);
      visit(mean);
    }
  }
}

// On the host means are decoded by blocks, in the L1 cache; on a device a piece at a time.
void LevelMean::apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx,
                      rules::Rule& rule, View x) const {
  space_.begin_frames();
  const Wire& wire = flight.wire(kLevelFrames);
  space_.upload_block(wire.down_block.span());
  alignas(64) std::array<float, Values::kBlock> block;
  FlatBuffer on_device;
  if (!space_.is_host()) on_device = FlatBuffer::room(bucket.size(), space_);
  for (std::size_t j = 0; j < bucket.shards.size(); ++j) {
    const Shard& shard = bucket.shards[j];
    const auto unused = means(shard, wire.down[j].span()).unused;
    const auto view = means(shard, space_.upload(wire.down[j].span()));
    for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
      const Piece& p = shard.pieces[k];
      const StepScalars s = ctx.scalars_of(p);
      if (bit_at(unused, k)) {
        space_.run(kernels::ApplyDecay{s.decay.same, x.of(p)});
        continue;
      }
      const auto room =
          space_.is_host() ? std::span(block) : on_device.span().subspan(p.begin - bucket.begin);
      for (std::size_t at = 0; at < p.n(); at += room.size()) {
        const std::size_t n = std::min(room.size(), p.n() - at);
        const auto mean = room.first(64 * words_for(n));
        read_values(space_, view, 64 * p.first_word + at, mean);
        rule.step(p.begin + at, {mean.data(), n, DType::kFloat32, ctx.grad_scale}, s,
                  x.of(p).subspan(at, n));
      }
    }
  }
}

}  // namespace pride::methods
