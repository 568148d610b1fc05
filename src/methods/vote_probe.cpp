// SPDX-License-Identifier: Apache-2.0
#include "methods/vote_probe.h"

#include <algorithm>
#include <cmath>

#include "codecs/samples.h"
#include "methods/dlion.h"

namespace pride::methods {
namespace {

int sign_of(double x) { return (x > 0) - (x < 0); }

// 0 where the vote is right, 1 where it is wrong, 1/2 for a tie, whose bit is fair.
double wrongness(double vote, double mean) {
  return vote == 0 ? 0.5 : sign_of(vote) == sign_of(mean) ? 0.0 : 1.0;
}

// One coordinate on all ranks that have it.
struct Coordinate {
  double mean_u = 0, signs = 0, levels = 0, mean_m = 0, mean_m2 = 0;
  int present = 0, plus = 0, minus = 0;
};

}  // namespace

VoteProbe::VoteProbe(const Layout& layout, int world) : layout_(layout), world_(world) {
  // an all-gather: fewer samples on many ranks
  const std::size_t crowd = std::max<std::size_t>(1, static_cast<std::size_t>(world) / 16);
  const std::size_t least = std::max<std::size_t>(4, 16 / crowd);
  const std::size_t most = std::max<std::size_t>(4, 256 / crowd);
  for (const TensorSlot& slot : layout.tensors()) {
    const std::size_t wanted = std::clamp(slot.n / 1000 / crowd, least, most);
    const std::size_t stride = std::max<std::size_t>(1, (slot.n + wanted - 1) / wanted);
    const std::size_t count = (slot.n + stride - 1) / stride;
    tensors_.push_back({slot.offset, slot.n, stride, n_samples_, count});
    n_samples_ += count;
  }
  samples_.resize(n_samples_ * static_cast<std::size_t>(world));
}

std::vector<std::size_t> VoteProbe::samples_in(const Bucket& bucket) const {
  std::vector<std::size_t> out;
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      const Tensor& t = tensors_[piece.tensor];
      std::size_t i = (piece.begin - t.offset + t.stride - 1) / t.stride * t.stride;
      for (; t.offset + i < piece.end; i += t.stride) out.push_back(t.offset + i);
    }
  }
  return out;
}

std::size_t VoteProbe::tensor_at(std::size_t coord) const {
  const auto after = std::upper_bound(tensors_.begin(), tensors_.end(), coord,
                                      [](std::size_t c, const Tensor& t) { return c < t.offset; });
  return static_cast<std::size_t>(after - tensors_.begin()) - 1;
}

std::optional<Part> VoteProbe::part(const Bucket& bucket, int voters) const {
  const std::size_t n = samples_in(bucket).size();
  if (n == 0) return std::nullopt;
  return one_shot_part(bucket.index, n, sample_frames(), all_sample_frames(voters));
}

void VoteProbe::sample_blends(const Bucket& bucket, const StepContext& ctx, GradientView grad,
                              std::span<const float> m, std::span<const float> e,
                              Wire& wire) const {
  const auto coords = samples_in(bucket);
  const SampleView mine(wire.up[0].span().data(), coords.size());
  for (std::size_t i = 0; i < coords.size(); ++i) {
    const std::size_t c = coords[i];
    const std::size_t tensor = tensor_at(c);
    if (ctx.is_unused(tensor)) {  // sample_results() marks it
      mine.u[i] = 0;
      continue;
    }
    float g = 0;
    const auto& scalars = ctx.scalars_of_group(layout_.tensors()[tensor].spec.group);
    kernels::blend_only(grad.read(tensor, c, c + 1, std::span(&g, 1)), lion_blend(scalars),
                        m.subspan(c, 1), mine.u.subspan(i, 1));
    if (!e.empty()) mine.u[i] += e[c];
  }
}

void VoteProbe::sample_results(const Bucket& bucket, const StepContext& ctx,
                               std::span<const float> m, const SentLevel& sent, Wire& wire) const {
  const auto coords = samples_in(bucket);
  const SampleView mine(wire.up[0].span().data(), coords.size());
  for (std::size_t i = 0; i < coords.size(); ++i) {
    const bool unused = ctx.is_unused(tensor_at(coords[i]));
    mine.m[i] = m[coords[i]];
    if (unused) mine.u[i] = 0;
    mine.q[i] = unused ? kNoLevel : static_cast<std::int8_t>(sent(coords[i]));
  }
  clear_padding(mine.q);
}

void VoteProbe::serve(const Ballots& up, Reply& reply) {
  auto out = reply.head.subspan(kHeaderBytes).begin();
  for (const Frame& f : up.frames) out = std::ranges::copy(f.head.subspan(kHeaderBytes), out).out;
}

void VoteProbe::keep(const Bucket& bucket, const Wire& wire) {
  const auto coords = samples_in(bucket);
  // the result has one header, followed by the payloads of all frames
  const std::byte* frame = wire.down[0].span().data();
  for (std::size_t r = 0; r < static_cast<std::size_t>(world_); ++r) {
    const SampleView theirs(frame, coords.size());
    for (std::size_t i = 0; i < coords.size(); ++i) {
      const Tensor& at = tensors_[tensor_at(coords[i])];
      const std::size_t index = at.first + (coords[i] - at.offset) / at.stride;
      samples_[r * n_samples_ + index] = {theirs.u[i], theirs.m[i], theirs.q[i]};
    }
    frame += theirs.bytes - kHeaderBytes;
  }
}

std::span<const Sample> VoteProbe::of_rank(const Tensor& t, int rank) const {
  return std::span(samples_).subspan(static_cast<std::size_t>(rank) * n_samples_ + t.first,
                                     t.count);
}

std::vector<TensorDiagnostics> VoteProbe::evaluate() const {
  std::vector<TensorDiagnostics> out;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    TensorDiagnostics d{.tensor = t};
    double variance = 0, square = 0, size = 0;
    for (std::size_t i = 0; i < tensors_[t].count; ++i) {
      Coordinate c;
      for (int r = 0; r < world_; ++r) {
        const Sample& s = of_rank(tensors_[t], r)[i];
        c.mean_m += static_cast<double>(s.m) / world_;
        c.mean_m2 += static_cast<double>(s.m) * static_cast<double>(s.m) / world_;
        if (s.q == kNoLevel) continue;
        ++c.present;
        c.mean_u += static_cast<double>(s.u);
        c.signs += sign_of(static_cast<double>(s.u));
        c.levels += s.q;
        c.plus += s.u > 0 ? 1 : 0;
        c.minus += s.u < 0 ? 1 : 0;
      }
      variance += std::max(0.0, c.mean_m2 - c.mean_m * c.mean_m);
      square += c.mean_m2;
      if (c.mean_u == 0) continue;
      ++d.samples;
      d.unanimous += c.plus == c.present || c.minus == c.present ? 1 : 0;
      d.vote_error += wrongness(c.levels, c.mean_u);
      d.sign_vote_error += wrongness(c.signs, c.mean_u);
      d.vote_loss += wrongness(c.levels, c.mean_u) * std::abs(c.mean_u);
      d.sign_vote_loss += wrongness(c.signs, c.mean_u) * std::abs(c.mean_u);
      size += std::abs(c.mean_u);
    }
    const double n = std::max<double>(1, static_cast<double>(d.samples));
    d.unanimous /= n;
    d.vote_error /= n;
    d.sign_vote_error /= n;
    d.vote_loss /= size > 0 ? size : 1;
    d.sign_vote_loss /= size > 0 ? size : 1;
    d.momentum_variance = square > 0 ? variance / square : 0;
    out.push_back(d);
  }
  return out;
}

}  // namespace pride::methods
