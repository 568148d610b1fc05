// What the methods with error feedback share: momentum, the two errors, and their way round.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exchange/scaled_signs.h"
#include "kernels/scaled_signs.h"
#include "pride/method.h"

namespace pride::methods {

// Worker: p = feedback of (gradient, momentum, error), sends C(p) = scale * sign(p).
// Owner:  pbar = mean of C(p) + owner's error, answers Delta = C(pbar).
// All of it is computed from state that only apply changes: apply works p out once more, from the
// gradient, rather than keep a float per coordinate of every bucket in flight.
class ErrorFeedbackMethod : public Method {
 public:
  ErrorFeedbackMethod(const Layout& layout, exchange::Norm norm)
      : norm_(norm),
        m_(layout.flat_size()),
        error_(layout.flat_size()),
        owner_error_(layout.flat_size()) {}

  std::size_t alignment() const noexcept override { return kScaleBlock; }
  bool has_owner_state() const noexcept override { return true; }
  void encode(const Bucket& b, ConstView g, const StepContext& ctx, Wire& w) override;
  void exchange(Communicator& c, const Bucket& b, const StepContext& ctx, Wire& w) override;
  void apply(const Bucket& b, const Wire& w, const StepContext& ctx, View x) override;
  Cost cost(std::span<const Bucket> buckets, int rank, std::int64_t step) const override;
  void save(StateWriter& out) const override;
  void load(StateReader& in) override;
  std::uint64_t state_floats() const override;

 protected:
  // What this rank compresses.
  virtual kernels::Feedback feedback(const StepScalars& s) const = 0;

  // One step of a block for its Delta; m holds what feedback made of it. m and x have block.n()
  // floats. Blocks of a tensor without a gradient on any rank only decay, and do not come here.
  virtual void step_block(const ScaleBlock& block, const exchange::SignBlock& delta,
                          const StepContext& ctx, const StepScalars& s, std::span<float> m,
                          std::span<float> x) = 0;

  FlatBuffer& momentum() noexcept { return m_; }

 private:
  void encode_shard(const Shard& shard, ConstView g, const StepContext& ctx,
                    std::span<std::byte> frame, std::optional<Poison>& poison) const;
  void apply_shard(const Bucket& b, std::size_t j, const Wire& w, const StepContext& ctx, View x);

  exchange::Norm norm_;
  FlatBuffer m_, error_;
  FlatBuffer owner_error_;  // zero but for the shards of this rank
};

}  // namespace pride::methods
