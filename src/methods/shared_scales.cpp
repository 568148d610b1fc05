// SPDX-License-Identifier: Apache-2.0
#include "methods/shared_scales.h"

#include <algorithm>
#include <cmath>

namespace pride::methods {
namespace {

template <typename Byte>
auto scales_in(Byte* frame, std::size_t n) {
  return Parts<Byte>(frame).template take<float>(n);
}

FrameKind scale_frames() {
  return {.codec = Codec::kScales,
          .name = "scales",
          .unused_bits = false,
          .bytes =
              [](const Shard& s) {
                Parts<std::byte> parts(nullptr);
                parts.take<float>(s.size());
                return parts.end();
              },
          .check =
              [](const ReceivedFrame& f) {
                const auto scales = scales_in(f.frame.head.data(), f.shard.size());
                for (std::size_t t = 0; t < scales.size(); ++t) {
                  if (std::isfinite(scales[t]) && !std::signbit(scales[t])) continue;
                  f.refuse("has ", scales[t], " as scale ", t);
                }
                if (!padding_is_zero(std::as_bytes(scales))) {
                  f.refuse("has nonzero padding after its scales");
                }
              }};
}

}  // namespace

Part SharedScales::part() const {
  Part part = one_shot_part(n_, scale_frames(), scale_frames());
  part.id = kPart;
  return part;
}

void SharedScales::write(std::span<const float> scales, Wire& wire) const {
  const auto frame = wire.up[0].span();
  std::ranges::fill(frame.subspan(kHeaderBytes), std::byte{0});
  std::ranges::copy(scales, scales_in(frame.data(), n_).begin());
}

void SharedScales::read(const Wire& wire, std::span<float> scales) const {
  std::ranges::copy(scales_in(wire.down[0].span().data(), n_), scales.begin());
}

void SharedScales::serve(const VoterFrames& voters, Reply& reply) const {
  const auto out = scales_in(reply.head.data(), n_);
  for (std::size_t t = 0; t < n_; ++t) {
    double sum = 0, largest = 0;
    int n = 0;
    for (const Frame& frame : voters.frames) {
      const double theirs = scales_in(frame.head.data(), n_)[t];
      sum += theirs;
      largest = std::max(largest, theirs);
      n += theirs > 0 ? 1 : 0;
    }
    const double mean = n > 0 ? sum / n : 0;
    out[t] = static_cast<float>(rule_ == Rule::kLargest ? largest : mean);
  }
}

}  // namespace pride::methods
