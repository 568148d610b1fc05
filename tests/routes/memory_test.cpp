// Memory of the exchanges: it depends on the bucket, not on the model or the number of ranks.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "methods/registry.h"
#include "optimizer/pipeline.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "support/one_section.h"

namespace pride::memory_test {
namespace {

constexpr int kOnTheirWay = 2;  // exchange threads

// Bytes that the pipeline of rank 0 holds after one step over d coordinates.
std::size_t wire_bytes(int world, std::size_t d, std::size_t bucket_coords, bool overlap,
                       const std::string& name = "dlion-vote",
                       const std::map<std::string, std::string>& options = {{"route", "sharded"}}) {
  const Layout layout({{"w", {static_cast<std::int64_t>(d)}}});
  std::size_t bytes = 0;
  run_world(world, [&](Communicator& comm) {
    auto method = make_method(name, {layout, world, complete_options(name, options)});
    method->state().allocate(layout.flat_size());
    OneSection only(layout, std::move(method), bucket_coords, world, comm.rank());
    SectionStep& step = only.steps[0];
    std::vector<std::unique_ptr<Communicator>> own;
    for (int i = 0; i < kOnTheirWay; ++i) own.push_back(comm.duplicate());
    Pipeline pipeline(own, comm, only.sections, only.steps, {}, overlap);
    FlatBuffer x(layout.flat_size()), g(layout.flat_size());
    const std::vector<StepScalars> scalars(1);
    step.ctx.groups = scalars;
    step.ctx.x = step.x = {.flat = x.span()};
    step.grads = {.flat = g.data()};
    pipeline.begin(false);
    pipeline.finish();
    if (comm.rank() == 0) bytes = pipeline.wire_bytes();
  });
  return bytes;
}

TEST(VoteMemory, IsThreeBitsPerCoordinateOfABucket) {
  for (const int world : {2, 4, 8}) {
    const std::size_t bucket = 1 << 16;
    const std::size_t frames = static_cast<std::size_t>(3 * world) * 256;  // headers and rounding
    EXPECT_LE(wire_bytes(world, std::size_t{1} << 20, bucket, false), 3 * bucket / 8 + frames)
        << "N = " << world;
  }
}

// A bit from each rank, and one of the result: small, since only small buckets take that route.
TEST(VoteMemory, InOneShotIsABitOfEachRankPerCoordinateOfABucket) {
  for (const int world : {2, 4, 8}) {
    const std::size_t bucket = 1 << 16, bits = static_cast<std::size_t>(world) + 1;
    EXPECT_LE(wire_bytes(world, std::size_t{1} << 20, bucket, false, "dlion-vote",
                         {{"route", "one-shot"}}),
              bits * (bucket / 8 + 256))
        << "N = " << world;
  }
}

// Votes and results, a bit each; received frames are needed while a bucket is on its way.
TEST(VoteMemory, WithOverlapIsTwoBitsPerCoordinateOfTheModel) {
  const std::size_t d = std::size_t{1} << 23, bucket = std::size_t{1} << 20;
  for (const int world : {4, 32}) {
    // headers and rounding, and the fault word of each part
    const std::size_t frames = d / bucket * (static_cast<std::size_t>(2 * world) * 128 + 64);
    EXPECT_LE(wire_bytes(world, d, bucket, true), d / 4 + kOnTheirWay * bucket / 8 + frames)
        << "N = " << world;
  }
}

// Rounding needs a copy of the gradients, which is no larger than the savings of narrower frames
// and means.
TEST(DenseMemory, InBf16IsNoMoreThanInFloat32) {
  const std::size_t d = std::size_t{1} << 20, bucket = std::size_t{1} << 16;
  for (const int world : {1, 2, 8}) {
    for (const bool overlap : {false, true}) {
      const auto bytes = [&](const char* dense) {
        return wire_bytes(world, d, bucket, overlap, "lion", {{"dense", dense}});
      };
      EXPECT_LE(bytes("bf16"), bytes("ordered")) << "N = " << world << ", overlap " << overlap;
    }
  }
}

}  // namespace
}  // namespace pride::memory_test
