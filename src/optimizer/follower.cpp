// SPDX-License-Identifier: Apache-2.0
#include "optimizer/follower.h"

#include <algorithm>
#include <cassert>

#include "base/digest.h"
#include "codecs/frame.h"
#include "methods/registry.h"
#include "optimizer/step_scalars.h"
#include "pride/error.h"

namespace pride {
namespace {

// Digest of the step's scalars, the layout, and the positions of its tensors in the whole model, so
// that results for other tensors are refused.
std::uint64_t digest_of(const StepContext& ctx, const Layout& layout) {
  Digest digest;
  digest.number(ctx.scalars_digest).number(layout.digest());
  for (const TensorSlot& slot : layout.tensors()) digest.number(slot.offset + slot.to_whole);
  return digest.value();
}

FrameHeader header_of(const Part& part, std::size_t shard, const StepContext& ctx,
                      const Layout& layout) {
  return {.codec = part.down.codec,
          .bucket = static_cast<std::uint32_t>(part.bucket),
          .rank = static_cast<std::uint16_t>(shard),
          .step = static_cast<std::uint64_t>(ctx.step),
          .n_coords = part.shards[shard].size(),
          .scalars = digest_of(ctx, layout),
          .non_finite = {}};
}

std::string first_name(const Layout& layout) {
  return layout.tensors().empty() ? std::string() : layout.tensors().front().spec.name;
}

}  // namespace

bool results_suffice(const Method& method, int voters) {
  const Protocol protocol = method.protocol({.voters = voters});
  const StateTable& state = method.state();
  return protocol.replays && method.mean_gradient() == nullptr && !state.has(StateKind::kShared) &&
         !state.has(StateKind::kServer);
}

void append_results(const Layout& layout, const StepContext& ctx, const Flight& flight,
                    std::vector<std::byte>& out) {
  for (std::size_t k = 0; k < flight.parts.size(); ++k) {
    const Part& part = flight.parts[k];
    assert(part.down.width == 0);
    for (std::size_t j = 0; j < part.shards.size(); ++j) {
      const auto frame = flight.wires[k].down[j].span();
      const std::size_t at = out.size();
      out.insert(out.end(), frame.begin(), frame.end());
      seal(header_of(part, j, ctx, layout), std::span(out).subspan(at));
    }
  }
}

Follower::Follower(Layout layout, const OptimizerOptions& options, int voters, Space& space)
    : layout_(std::move(layout)),
      space_(space),
      method_(make_method(options.method, {layout_, voters, options.options, options.nodes, space,
                                           options.orthogonalise})),
      parameters_(layout_, space),
      unused_(layout_.tensors().size(), 1) {
  PRIDE_CHECK(static_cast<std::size_t>(layout_.n_groups()) <= options.groups.size(),
              "optimizer: follow(): the layout has ", layout_.n_groups(), " groups, the options ",
              options.groups.size());
  const Protocol protocol = method_->protocol({.voters = voters});
  buckets_ =
      make_buckets(layout_, options.bucket_coords, voters, protocol.alignment, protocol.cuts);
  flights_.resize(buckets_.size());
  step_.emplace(*method_, buckets_, space_);
}

std::size_t Follower::bytes(const Round& round) const {
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    for (const Part& part : method_->parts(bucket, round)) {
      for (const Shard& shard : part.shards) bytes += part.down.bytes(shard);
    }
  }
  return bytes;
}

std::size_t Follower::frame_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Flight& flight : flights_) bytes += flight.capacity_bytes();
  return bytes;
}

void Follower::check(const Parameters& params, std::span<const bool> frozen) const {
  PRIDE_CHECK(frozen.empty() || frozen.size() == unused_.size(),
              "optimizer: apply_results(): ", frozen.size(), " flags for ", unused_.size(),
              " tensors");
  if (params.is_flat()) return;
  for (const Tensor& tensor : params.each()) {
    PRIDE_CHECK(tensor.dtype == DType::kFloat32, "optimizer: apply_results(): parameters in ",
                name_of(tensor.dtype),
                ", must be float32: other types have masters, which results do not contain");
  }
}

void Follower::apply(const Parameters& params, std::span<const bool> frozen, const StepContext& own,
                     std::span<const std::byte> results) {
  check(params, frozen);
  const bool any = std::ranges::find(frozen, true) != frozen.end();
  frozen_.assign(frozen.begin(), any ? frozen.end() : frozen.begin());
  StepContext ctx = own;
  ctx.unused = unused_;  // no gradient of this rank
  ctx.frozen = frozen_;
  ctx.scalars_digest = digest_of(ctx.groups, frozen_);
  take(ctx, results);
  parameters_.place(params, "apply_results");
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    step_->replay(b, flights_[b], ctx, parameters_.view());
  }
  applied_ = space_.record();
}

// Checks the results and copies them into the flights.
void Follower::take(const StepContext& ctx, std::span<const std::byte> results) {
  if (const std::size_t expected = bytes(ctx); results.size() != expected) {
    throw CommError(concat("results for '", first_name(layout_), "' and on, step ", ctx.step + 1,
                           ": ", results.size(), " bytes, must be ", expected));
  }
  space_.wait(applied_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Flight& flight = flights_[b];
    step_->expect(b, ctx, flight);
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      auto& down = flight.wires[k].down;
      for (std::size_t j = 0; j < down.size(); ++j) {
        const auto to = down[j].span();
        take_frame(flight.parts[k], j, ctx, results.first(to.size()), to);
        results = results.subspan(to.size());
      }
    }
  }
}

void Follower::take_frame(const Part& part, std::size_t shard, const StepContext& ctx,
                          std::span<const std::byte> result, std::span<std::byte> out) {
  std::ranges::copy(result, out.begin());
  const std::string where =
      concat("results for '", first_name(layout_), "' and on, step ", ctx.step + 1, ": ",
             part.down.name, " frames of bucket ", part.bucket);
  const Frame frame{out};
  const auto bad = open(frame, header_of(part, shard, ctx, layout_), where);
  if (bad) throw CommError(concat(where, ": tensor ", bad->tensor, " is not finite"));
  check_payload(part.down, {frame, part.shards[shard], static_cast<int>(shard), where}, true);
}

}  // namespace pride
