// A small run of dlion-vote, ballots of chosen signs, and a replica that applies records: what
// workers do, without an optimizer. One tensor, one bucket.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codecs/signs.h"
#include "coord/run_message.h"
#include "methods/registry.h"
#include "optimizer/central_round.h"
#include "optimizer/step_scalars.h"
#include "pride/optimizer.h"
#include "pride/serving.h"

namespace pride::coord::test {

inline constexpr float kRate = 0.125F;  // sums of steps are exact

inline RunDescription run_of_signs(std::int64_t n = 200, const std::string& method = "dlion-vote") {
  return {.method = method,
          .options = complete_options(method, {}),
          .tensors = {{"w", {n}, 0}},
          .groups = {ParamGroup{}},
          .bucket_coords = std::size_t{1} << 30,
          .seed = 5,
          .settings = "a test"};
}

inline std::vector<StepScalars> scalars(float lr = kRate) { return {{.lr = lr, .decay = 1}}; }

inline std::string scalars_text(float lr = kRate) {
  const auto bytes = encode_scalars(scalars(lr));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// True: the sign at this coordinate is +.
using Signs = std::function<bool(std::size_t coordinate)>;

struct BallotOf {
  int number = 0;
  std::int64_t round = 0;
  int weight = 1;
  float lr = kRate;
};

// The frame that dlion-vote's encode() would make of these signs.
inline std::string ballot_of(const RunDescription& run, const BallotOf& of, const Signs& signs) {
  const Layout layout(run.tensors);
  const auto buckets = make_buckets(layout, run.bucket_coords, 1);
  const Shard& shard = buckets[0].shards[0];
  std::vector<std::uint64_t> frame(sign_frames().bytes(shard) / 8);
  const auto bytes = std::as_writable_bytes(std::span(frame));
  SignView<std::byte> view(bytes.data(), shard);
  for (std::size_t i = 0; i < layout.n_coords(); ++i) {
    if (signs(i)) set_bit(view.signs, i);
  }
  seal({.codec = Codec::kSign,
        .rank = static_cast<std::uint16_t>(of.number),
        .weight = static_cast<std::uint16_t>(of.weight),
        .step = static_cast<std::uint64_t>(of.round),
        .n_coords = shard.size(),
        .scalars = digest_of(scalars(of.lr)),
        .non_finite = {}},
       bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Parameters that follow records.
class Replica {
 public:
  explicit Replica(const RunDescription& run)
      : layout_(run.tensors), x_(layout_.flat_size()), rounds_(0) {
    for (std::size_t i = 0; i < layout_.n_coords(); ++i) x_[i] = static_cast<float>(i % 7);
  }

  std::int64_t round() const { return rounds_; }  // the next that it applies
  std::span<const float> params() const { return x_; }
  std::uint64_t hash() const { return param_hash(layout_, x_); }

  void take(std::int64_t before_round, std::span<const float> params) {
    x_.assign(params.begin(), params.end());
    rounds_ = before_round;
  }
  // Throws CommError unless it is the record of the next round, of these parameters.
  RoundRecord apply(std::span<const std::byte> bytes) {
    const RoundRecord record = decode_record(bytes, "replica");
    if (record.round != rounds_ || record.params_hash != hash()) {
      throw CommError(concat("replica: record of round ", record.round, " at round ", rounds_,
                             ", or of other parameters"));
    }
    const auto buckets = make_buckets(layout_, layout_.flat_size(), 1);
    const VoteView<const std::byte> vote(record.frames.data(), buckets[0].shards[0], false);
    for (std::size_t i = 0; i < layout_.n_coords(); ++i) {
      x_[i] -= bit_at(vote.positive, i) ? record.scalars[0].lr : -record.scalars[0].lr;
    }
    ++rounds_;
    return record;
  }

 private:
  Layout layout_;
  std::vector<float> x_;
  std::int64_t rounds_;
};

}  // namespace pride::coord::test
