// ErrorFeedback: scaled signs both ways; worker and server each keep their compression error for
// the next step. A component of SignSGD-EF and 1-bit Adam.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "codecs/scaled_signs.h"
#include "kernels/scaled_signs.h"
#include "methods/method.h"

namespace pride::methods {

// Worker: p = feedback of (gradient, momentum, error), sends C(p) = scale * sign(p).
// Server: pbar = mean of C(p) + its error, the result is Delta = C(pbar); its error = pbar - Delta.
// Only apply() changes the worker's state. It computes p from the gradient again: this saves a
// float per coordinate of every bucket in flight.
class ErrorFeedback {
 public:
  // The compressor's input, by the step's scalars.
  using FeedbackOf = std::function<kernels::Feedback(const StepScalars&)>;

  // Adds e and the server's error to the state. `m` is the method's momentum.
  ErrorFeedback(Space& space, StateTable& state, FlatBuffer& m, kernels::Norm norm,
                FeedbackOf feedback);

  std::vector<Part> parts(const Bucket& bucket) const;
  void encode(const Bucket& bucket, const StepContext& ctx, Flight& flight) const;
  void serve(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
             Reply& reply) const;

  // The method's step for the Delta of a block; on a device for all blocks of a piece at once. m is
  // the feedback's new momentum; m and x have block.n() floats. Not called for a tensor that no
  // rank uses, which only decays.
  struct Delta {
    std::span<const std::uint64_t> signs;
    kernels::BlockScales<const float> scales;
  };
  using StepBlock = std::function<void(const ScaleBlock& block, const Delta& delta,
                                       const StepScalars& s, std::span<float> m, Floats x)>;
  void apply(const Bucket& bucket, const Flight& flight, const StepContext& ctx, View x,
             const StepBlock& step);  // and commits the server's state

 private:
  ScaledSignView<const std::byte> brought(const ByteBuffer& frame, const Shard& shard) const;

  Space& space_;
  FlatBuffer &m_, &error_, &server_error_;  // server_error_ is zero outside this rank's shards
  kernels::Norm norm_;
  FeedbackOf feedback_;
};

}  // namespace pride::methods
