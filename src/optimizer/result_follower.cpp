// A step's results as bytes, and a follower: it applies them to the parameters of another rank's
// optimizer, without that optimizer's state. Byte layout: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#include "pride/result_follower.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codecs/frame.h"
#include "methods/registry.h"
#include "optimizer/optimizer_impl.h"
#include "optimizer/step_scalars.h"
#include "pride/digest.h"
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

// True if the results and scalars of a step determine its parameters: the method has no shared
// state, and no local state changes with a result.
bool results_suffice(const Method& method, int voters) {
  const Protocol protocol = method.protocol({.voters = voters});
  const StateTable& state = method.state();
  return protocol.replays && method.mean_gradient() == nullptr && !state.has(StateKind::kShared) &&
         !state.has(StateKind::kServer);
}

// Appends the results of a bucket: its frames, part by part and shard by shard, sealed again.
// `layout` is the optimizer's. REQUIRES: results_suffice().
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

}  // namespace

struct ResultFollower::Impl {
  Impl(Optimizer::Impl& all, Layout the_layout);

  void check_suffices(const char* call) const;
  std::size_t bytes() const;
  void check(const Parameters& params, std::span<const bool> frozen) const;
  void apply(const Parameters& params, std::span<const bool> frozen,
             std::span<const std::byte> results);
  void take(std::span<const std::byte> results);
  void take_frame(const Part& part, std::size_t shard, const StepContext& ctx,
                  std::span<const std::byte> result, std::span<std::byte> out);

  Optimizer::Impl& own;
  const Layout layout;
  Sections sections;
  std::vector<SectionStep> steps;  // their methods' states are not allocated
  PlacedParameters parameters;
  std::vector<char> frozen_there;  // by tensor
  std::vector<Flight> flights;     // by Bucket::index
  Space::Event applied = 0;        // after it the flights' frames may be overwritten
  bool suffices = false;
};

ResultFollower::Impl::Impl(Optimizer::Impl& all, Layout the_layout)
    : own(all),
      layout(std::move(the_layout)),
      sections(layout, own.options, own.world),
      parameters(layout, own.space) {
  own.check_idle("follow");
  steps = sections.make_steps(own.options, own.world, own.space);
  flights.resize(sections.by_bucket().size());
  // checks both layouts: a method may synchronise only some tensors, and all ranks must agree
  const auto suffice = [&](const SectionStep& step) {
    return results_suffice(*step.method, own.world);
  };
  suffices = std::ranges::all_of(own.steps(), suffice) && std::ranges::all_of(steps, suffice);
  own.followers.push_back(&flights);
  if (!suffices) return;
  own.pipeline->keep_results([&all](const Flight& flight) {
    append_results(all.layout, all.steps().front().ctx, flight, all.results);
  });
}

void ResultFollower::Impl::check_suffices(const char* call) const {
  own.check_idle(call);
  PRIDE_CHECK(suffices, "optimizer: ", call, "(): results of ", own.sections[0].method,
              own.sections.size() > 1 ? " and other methods" : "",
              " do not determine the parameters");
  PRIDE_CHECK(!own.scalars.empty(), "optimizer: ", call, "() before the first step");
}

std::size_t ResultFollower::Impl::bytes() const {
  std::size_t bytes = 0;
  for (const SectionStep& step : steps) {
    for (const Bucket& bucket : step.section->buckets) {
      for (const Part& part : step.method->parts(bucket, own.steps().front().ctx)) {
        for (const Shard& shard : part.shards) bytes += part.down.bytes(shard);
      }
    }
  }
  return bytes;
}

void ResultFollower::Impl::check(const Parameters& params, std::span<const bool> frozen) const {
  PRIDE_CHECK(frozen.empty() || frozen.size() == layout.tensors().size(),
              "optimizer: apply(): ", frozen.size(), " flags for ", layout.tensors().size(),
              " tensors");
  if (params.is_flat()) return;
  for (const Tensor& tensor : params.each()) {
    PRIDE_CHECK(tensor.dtype == DType::kFloat32, "optimizer: apply(): parameters in ",
                name_of(tensor.dtype),
                ", must be float32: other types have masters, which results do not contain");
  }
}

void ResultFollower::Impl::apply(const Parameters& params, std::span<const bool> frozen,
                                 std::span<const std::byte> results) {
  check(params, frozen);
  const bool any = std::ranges::find(frozen, true) != frozen.end();
  frozen_there.assign(frozen.begin(), any ? frozen.end() : frozen.begin());
  parameters.place(params, "apply");
  std::vector<std::vector<ParameterPlace>> places(steps.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    SectionStep& step = steps[s];
    step.unused.assign(step.section->tensors.size(), 1);  // no gradient of this rank
    step.frozen = step.section->flags(frozen_there);
    step.ctx = own.steps().front().ctx;
    step.ctx.unused = step.unused;
    step.ctx.frozen = step.frozen;
    step.ctx.scalars_digest = digest_of(step.ctx.groups, frozen_there);
    step.x = step.section->view(parameters.view(), places[s]);
  }
  take(results);
  for (std::size_t b = 0; b < flights.size(); ++b) {
    const auto& [section, index] = sections.by_bucket()[b];
    const SectionStep& step = steps[section];
    step.buckets.replay(index, flights[b], step.ctx, step.x);
  }
  applied = own.space.record();
}

// Checks the results and copies them into the flights.
void ResultFollower::Impl::take(std::span<const std::byte> results) {
  if (const std::size_t expected = bytes(); results.size() != expected) {
    throw CommError(concat("results for '", first_name(layout), "' and on, step ",
                           own.steps().front().ctx.step + 1, ": ", results.size(),
                           " bytes, must be ", expected));
  }
  own.space.wait(applied);
  for (std::size_t b = 0; b < flights.size(); ++b) {
    const auto& [section, index] = sections.by_bucket()[b];
    const SectionStep& step = steps[section];
    Flight& flight = flights[b];
    step.buckets.make_room(index, step.ctx, flight);
    for (std::size_t k = 0; k < flight.parts.size(); ++k) {
      auto& down = flight.wires[k].down;
      for (std::size_t j = 0; j < down.size(); ++j) {
        const auto to = down[j].span();
        take_frame(flight.parts[k], j, step.ctx, results.first(to.size()), to);
        results = results.subspan(to.size());
      }
    }
  }
}

void ResultFollower::Impl::take_frame(const Part& part, std::size_t shard, const StepContext& ctx,
                                      std::span<const std::byte> result, std::span<std::byte> out) {
  std::ranges::copy(result, out.begin());
  const std::string where =
      concat("results for '", first_name(layout), "' and on, step ", ctx.step + 1, ": ",
             part.down.name, " frames of bucket ", part.bucket);
  const Frame frame{out};
  const auto bad = open(frame, header_of(part, shard, ctx, layout), where);
  if (bad) throw CommError(concat(where, ": tensor ", bad->tensor, " is not finite"));
  check_payload(part.down, {frame, part.shards[shard], static_cast<int>(shard), where}, true);
}

// --- The front door. -----------------------------------------------------------------------------

ResultFollower::ResultFollower(Optimizer& own, Layout layout)
    : impl_(std::make_unique<Impl>(own.impl(), std::move(layout))) {}

ResultFollower::~ResultFollower() {
  Optimizer::Impl& own = impl_->own;
  std::erase(own.followers, &impl_->flights);
  if (!own.followers.empty()) return;
  own.pipeline->keep_results(nullptr);
  own.results.clear();
}

bool ResultFollower::suffices() const noexcept { return impl_->suffices; }

std::size_t ResultFollower::bytes() const {
  impl_->check_suffices("bytes");
  return impl_->bytes();
}

void ResultFollower::apply(const Parameters& params, std::span<const bool> frozen,
                           std::span<const std::byte> results) {
  impl_->check_suffices("apply");
  Optimizer::Impl& own = impl_->own;
  own.space.after(own.options.stream);
  impl_->apply(params, frozen, results);
  own.space.before(own.options.stream);
}

}  // namespace pride
