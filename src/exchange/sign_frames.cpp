// Shared parts of the exchanges of signs.
// SPDX-License-Identifier: Apache-2.0
#include "exchange/sign_frames.h"

#include <algorithm>

namespace pride::exchange {

void prepare_signs(const Bucket& bucket, Wire& wire) {
  const std::size_t n = bucket.shards.size();
  wire.up.resize(n);
  for (std::size_t j = 0; j < n; ++j) {
    wire.up[j].resize(SignFrame(bucket.shards[j]).bytes);
  }
}

std::vector<const std::uint64_t*> rows_of(const Run& run, const Frames& frames,
                                          const SignFrame& at) {
  std::vector<const std::uint64_t*> rows;
  rows.reserve(run.ranks.size());
  for (const int r : run.ranks) {
    const auto frame = frames[static_cast<std::size_t>(r)];
    rows.push_back(words_at(frame, at.signs_at + 8 * run.first_word, run.n_words).data());
  }
  return rows;
}

void combine_absent(const Wire& wire, const StepContext& ctx, const SignFrame& at,
                    std::span<std::uint64_t> nobody) {
  std::fill(nobody.begin(), nobody.end(), ~std::uint64_t{0});
  for (int r = 0; r < ctx.world; ++r) {
    const auto absent = words_at(frame_from(wire, r, ctx.rank), at.absent_at, at.absent_words);
    for (std::size_t w = 0; w < nobody.size(); ++w) nobody[w] &= absent[w];
  }
}

Cost sign_cost(std::span<const Bucket> buckets, int rank,
               const std::function<std::size_t(const Shard&)>& down_bytes) {
  Cost cost;
  for (const Bucket& bucket : buckets) {
    const std::size_t n = bucket.shards.size();
    for (std::size_t j = 0; j < n; ++j) {
      if (static_cast<int>(j) != rank) cost.bytes_up += SignFrame(bucket.shards[j]).bytes;
    }
    cost.bytes_down += (n - 1) * down_bytes(bucket.shards[static_cast<std::size_t>(rank)]);
  }
  return cost;
}

}  // namespace pride::exchange
