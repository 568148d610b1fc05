// A server alone: reads one call from standard input and writes the result without its header. This
// process has what all ranks have in common, parameters and rates, but no gradient and no state
// that a step has changed.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>

#include "base/bucket.h"
#include "support/serve_case.h"
#include "support/training.h"

namespace pride {
namespace {

void serve(const testing::ServeCase& c) {
  const Layout layout = testing::serve_layout();
  FlatBuffer x(layout.flat_size());
  testing::fill(layout, x, testing::initial);
  const auto scalars = testing::serve_scalars(c);
  const SharedContext shared{.step = c.step,
                             .voters = c.voters,
                             .seed = c.seed,
                             .scalars_digest = c.scalars,
                             .groups = scalars,
                             .x = {.flat = ConstFloats(std::as_const(x).span())}};
  const auto method = make_method(
      c.method, {layout, c.voters, complete_options(c.method, c.options), testing::nodes_of(c)});
  method->state().allocate(layout.flat_size());  // zeros
  const auto buckets =
      make_buckets(layout, testing::kServeBucket, c.voters, method->protocol(shared).alignment);
  const auto parts = method->parts(buckets.at(static_cast<std::size_t>(c.bucket)), shared);
  const Part& part = parts.at(static_cast<std::size_t>(c.part));
  const Shard& shard = part.shards[static_cast<std::size_t>(std::max(c.shard, 0))];

  std::vector<ByteBuffer> rooms(2 * c.heads.size());
  const auto copy = [](const std::string& text, ByteBuffer& room) {
    room.resize(text.size());
    std::ranges::copy(std::as_bytes(std::span(text)), room.span().begin());
    return room.span();
  };
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < c.heads.size(); ++i) {
    frames.push_back({copy(c.heads[i], rooms[2 * i]), copy(c.bodies[i], rooms[2 * i + 1])});
  }
  const bool sum = part.route == Route::kNative;
  const FrameRole role = c.partial ? FrameRole::kPartial : FrameRole::kDown;
  const FrameKind& kind = part.frames(role);
  ByteBuffer head, body, pending;
  head.resize(kind.bytes ? kind.bytes(shard) : 0);
  body.resize(sum ? c.bodies[0].size() : kind.body_bytes(shard));
  if (sum) copy(c.bodies[0], body), frames.clear();
  const std::string where = "frames of another process";
  Reply reply{role, head.span(), body.span(), pending};
  method->serve(part, shard, {c.from_partial ? FrameRole::kPartial : FrameRole::kUp, frames, where},
                shared, reply);
  for (const auto bytes :
       {head.span().subspan(std::min(head.size(), kHeaderBytes)), body.span(), pending.span()}) {
    std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                    static_cast<std::streamsize>(bytes.size()));
  }
}

}  // namespace
}  // namespace pride

int main() {
  pride::serve(pride::testing::read_case(std::cin));
  return std::cout.flush() ? 0 : 1;
}
