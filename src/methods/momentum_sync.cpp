// SPDX-License-Identifier: Apache-2.0
#include "methods/momentum_sync.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride::methods {

ValueFormat value_format(const std::string& method, const std::string& text) {
  if (text == "fp32") return {ValueFormat::Kind::kFloat32, 32};
  if (text == "bf16") return {ValueFormat::Kind::kBFloat16, 16};
  PRIDE_CHECK(text.size() == 1 && text[0] >= '2' && text[0] <= '8', method,
              ": option sync_format = '", text,
              "': choose fp32, bf16, or a number of bits from 2 to 8");
  return {ValueFormat::Kind::kLevels, text[0] - '0'};
}

MomentumSync::MomentumSync(const Layout& layout, std::vector<char> chosen, SyncSchedule schedule,
                           ValueFormat format)
    : chosen_(std::move(chosen)), schedule_(std::move(schedule)), format_(format) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    first_block_.push_back(n_blocks_);
    offset_.push_back(slot.offset);
    if (chosen_[t] != 0) n_blocks_ += (slot.n + 63) / 64;
  }
}

std::vector<MomentumSync::Range> MomentumSync::due(const Bucket& bucket, std::int64_t step) const {
  std::vector<Range> ranges;
  if (n_blocks_ == 0 || bucket.shards.size() == 1)
    return ranges;  // one rank: its momenta are the mean
  const SyncSchedule::Interval interval = schedule_.interval_of(step);
  const auto slices = static_cast<std::size_t>(interval.length);
  const auto slice = static_cast<std::size_t>(step - interval.begin);
  const std::size_t low = n_blocks_ * slice / slices, high = n_blocks_ * (slice + 1) / slices;
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      if (chosen_[piece.tensor] == 0) continue;
      const std::size_t offset = offset_[piece.tensor];
      const std::size_t first = first_block_[piece.tensor] + (piece.begin - offset) / 64;
      const std::size_t begin = std::max(first, low);
      const std::size_t end = std::min(first + piece.n_words(), high);
      if (begin >= end) continue;
      const std::size_t at = piece.begin + 64 * (begin - first);
      if (ranges.empty() || ranges.back().tensor != piece.tensor) {
        ranges.push_back({at, at, piece.tensor});
      }
      ranges.back().end = at + 64 * (end - begin);  // pieces of one tensor follow one another
    }
  }
  return ranges;
}

// Shards of the concatenated ranges, with the tensors that the values belong to.
std::optional<Part> MomentumSync::part(const Bucket& bucket, const SharedContext& shared) const {
  const auto ranges = due(bucket, shared.step);
  std::size_t n = 0;
  for (const Range& r : ranges) n += r.n();
  if (n == 0) return std::nullopt;
  Part part = sharded_part(bucket.index, n, shared.voters, value_frames(Codec::kValues, format_),
                           value_frames(Codec::kMeanValues, format_));
  for (Shard& shard : part.own) {
    std::size_t at = 0;
    for (const Range& r : ranges) {
      const std::size_t begin = std::max(shard.begin, at), end = std::min(shard.end, at + r.n());
      if (begin < end) shard.pieces.push_back({.tensor = r.tensor, .begin = begin, .end = end});
      at += r.n();
    }
  }
  return part;
}

namespace {

// The tensor of value i of the shard.
std::uint32_t tensor_of(const Shard& shard, std::size_t i) {
  const auto piece = std::ranges::upper_bound(shard.pieces, shard.begin + i, {}, &Piece::end);
  return static_cast<std::uint32_t>(piece->tensor);
}

}  // namespace

// Calls body(range, first) for the parts of ranges in a shard of the values. The momenta of `range`
// are the shard's values from `first` on.
template <typename Body>
void MomentumSync::for_parts(std::span<const Range> ranges, const Shard& shard, const Body& body) {
  std::size_t at = 0;
  for (const Range& r : ranges) {
    const std::size_t begin = std::max(shard.begin, at), end = std::min(shard.end, at + r.n());
    if (begin < end) {
      const std::size_t m = r.begin + (begin - at);
      body(Range{m, m + (end - begin), r.tensor}, begin - shard.begin);
    }
    at += r.n();
  }
}

void MomentumSync::encode(Space& space, const Bucket& bucket, const StepContext& ctx,
                          std::span<const float> m, const Part& part, Wire& wire) const {
  const auto ranges = due(bucket, ctx.step);
  space.stage_block(wire.up_block.span());
  std::uint32_t* const watched = space.watch(wire.fault_word());
  for (std::size_t j = 0; j < part.shards.size(); ++j) {
    const Shard& shard = part.shards[j];
    const std::span<std::byte> frame = wire.up[j].span();
    clear_padding(ValueView(frame.data(), shard.size(), format_).scales);
    const auto staged = space.stage(frame);
    const ValueView view(staged.data(), shard.size(), format_);
    for_parts(ranges, shard, [&](const Range& r, std::size_t first) {
      write_values(space, Values::of(m.subspan(r.begin, r.n())), view, first,
                   {watched, static_cast<std::uint32_t>(r.tensor)});
    });
    space.send(staged, frame);
  }
  space.report(watched, wire.fault_word());
}

void MomentumSync::serve(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
                         Reply& reply) const {
  const std::size_t n = shard.size();
  std::vector<float> theirs(n * voters.frames.size());
  std::vector<const float*> rows;
  for (std::size_t i = 0; i < voters.frames.size(); ++i) {
    const auto row = std::span(theirs).subspan(n * i, n);
    read_values(voters.frames[i].head, format_, row);
    rows.push_back(row.data());
  }
  const auto mean = std::span(theirs).first(n);
  kernels::mean_rows(rows, shared.voters, mean);
  const std::size_t bad = write_values(mean, format_, reply.head);
  if (bad < n) reply.non_finite = NonFinite{NonFinite::kSum, tensor_of(shard, bad)};
}

void MomentumSync::apply(Space& space, const Bucket& bucket, const StepContext& ctx,
                         const Part& part, const Wire& wire, std::span<float> m) const {
  const auto ranges = due(bucket, ctx.step);
  space.upload_block(wire.down_block.span());
  for (std::size_t j = 0; j < part.shards.size(); ++j) {
    const Shard& shard = part.shards[j];
    const ValueView view(space.upload(wire.down[j].span()).data(), shard.size(), format_);
    for_parts(ranges, shard, [&](const Range& r, std::size_t first) {
      read_values(space, view, first, m.subspan(r.begin, r.n()));
    });
  }
}

}  // namespace pride::methods
