// Lion Cub's worker on a device.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "codecs/levels.h"
#include "methods/lion_cub.h"

namespace pride::methods {

void LionCub::encode_on_device(const Bucket& b, const StepContext& ctx, Flight& flight) {
  space_.begin_frames();
  if (bits_ > 1) {
    levels_on_device(b, ctx, flight);
  } else {
    encode_signs(space_, b.shards, flight.grad, ctx, lion_blend, m_, *flight.find(kVotes));
  }
  if (tie_ == Tie::kHash) {
    const int votes = flight.find(kSum) != nullptr ? kSum : kVotes;
    send_tie_bits(space_, flight.part(votes).shards, ctx, nullptr, *flight.find(votes));
  }
  if (Wire* momenta = flight.find(kMomenta)) {
    sync_.encode(space_, b, ctx, m_.span(), flight.part(kMomenta), *momenta);
  }
}

// A native sum's integers as words: a bucket has a multiple of 64 coordinates.
std::span<std::uint64_t> LionCub::words_of_sums(Wire& sums) {
  const auto bytes = sums.room.span();
  return {reinterpret_cast<std::uint64_t*>(bytes.data()), bytes.size() / sizeof(std::uint64_t)};
}

kernels::LevelLines LionCub::integers_of(const Bucket& b, const Piece& p, Sum type,
                                         std::span<std::uint64_t> words) const {
  const std::size_t width = width_of(type);
  return {
      .shape = {0, bits_},
      .integers = std::as_writable_bytes(words).subspan(width * (p.begin - b.begin), width * p.n()),
      .width = width};
}

// next_ keeps the quantisation error until apply(): the step may be dropped.
void LionCub::levels_on_device(const Bucket& b, const StepContext& ctx, Flight& flight) {
  Wire& wire = *flight.find(kVotes);
  Wire* sums = flight.find(kSum);
  if (!sums) space_.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space_.watch(wire.fault_word());
  if (e_ && next_.size() == 0) next_ = FlatBuffer::room(layout_.flat_size(), space_);
  std::span<std::uint64_t> integers;
  if (sums) {
    sums->room.resize(width_of(flight.part(kSum).sum) * b.size(), *ctx.memory);
    integers = space_.stage(words_of_sums(*sums));
    space_.clear(integers);  // unused tensors and padding add 0
  }
  for (std::size_t j = 0; j < b.shards.size(); ++j) {
    const Shard& shard = b.shards[j];
    kernels::LevelLines lines;
    std::span<std::uint64_t> frame;
    if (!sums) {
      const LevelView view(wire.up[j].span().data(), shard, bits_);
      frame = view.lines;
      lines = {.shape = view.shape, .words = space_.stage(frame)};
      const bool any_unused = std::ranges::any_of(
          shard.pieces, [&](const Piece& p) { return ctx.is_unused(p.tensor); });
      if (any_unused) space_.clear(lines.words);
    }
    for (const Piece& p : shard.pieces) {
      if (ctx.is_unused(p.tensor)) continue;
      lines.first_word = p.first_word;
      lines.n_words = p.n_words();
      Quantiser::Buffers buffers{
          .g = flight.grad, .m = m_.span().subspan(p.begin, p.n()), .e = {}, .e_next = {}};
      if (e_) {
        buffers.e = e_->span().subspan(p.begin, p.n());
        buffers.e_next = next_.span().subspan(p.begin, p.n());
      }
      quantiser_.encode_on_device(space_, p, ctx, buffers, bits_,
                                  sums ? integers_of(b, p, flight.part(kSum).sum, integers) : lines,
                                  {watched, static_cast<std::uint32_t>(p.tensor)});
    }
    if (!sums) space_.send(lines.words, frame);
  }
  if (sums) space_.send(integers, words_of_sums(*sums));
  space_.report(watched, wire.fault_word());
}

}  // namespace pride::methods
