// SPDX-License-Identifier: Apache-2.0
#include "codecs/samples.h"

#include "kernels/kernels.h"

namespace pride {

FrameKind sample_frames() {
  return {.codec = Codec::kSamples,
          .name = "samples",
          .unused_bits = false,
          .bytes = [](const Shard& s) { return SampleView<std::byte>(nullptr, s.size()).bytes; },
          .check =
              [](const ReceivedFrame& f) {
                const SampleView view(f.frame.head.data(), f.shard.size());
                const std::size_t bad = kernels::first_non_finite(view.floats);
                if (bad != kernels::kAllFinite) {
                  f.refuse("has ", view.floats[bad], " as sample ", bad % f.shard.size());
                }
                if (!padding_is_zero(std::as_bytes(view.q))) {
                  f.refuse("has nonzero padding after its samples");
                }
              }};
}

FrameKind all_sample_frames(int voters) {
  FrameKind kind = sample_frames();
  kind.bytes = [one = kind.bytes, voters](const Shard& s) {
    return kHeaderBytes + static_cast<std::size_t>(voters) * (one(s) - kHeaderBytes);
  };
  return kind;
}

}  // namespace pride
