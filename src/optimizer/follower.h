// A step's results as bytes, and a follower: it applies them to the parameters of another rank's
// optimizer, without that optimizer's state. Byte layout: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bucket.h"
#include "optimizer/bucket_step.h"
#include "optimizer/placed_parameters.h"
#include "pride/optimizer.h"

namespace pride {

// True if the results and scalars of a step determine its parameters: the method has no shared
// state, and no local state changes with a result.
bool results_suffice(const Method& method, int voters);

// Appends the results of a bucket: its frames, part by part and shard by shard, sealed again.
// `layout` is the optimizer's. REQUIRES: results_suffice().
void append_results(const Layout& layout, const StepContext& ctx, const Flight& flight,
                    std::vector<std::byte>& out);

class Follower {
 public:
  // Follows an optimizer with this layout, these options and this number of voters. `space` must
  // outlive this object. Throws InvalidArgument if the options have fewer groups than the layout.
  Follower(Layout layout, const OptimizerOptions& options, int voters, Space& space);

  // results_suffice() of that optimizer. The functions below require it.
  bool suffices(int voters) const { return results_suffice(*method_, voters); }

  std::size_t bytes(const Round& round) const;  // of the step's results
  std::size_t frame_bytes() const noexcept;

  // Changes `params` as the optimizer did in the step of these results. `own` is this rank's
  // context of the same step; frozen[i]: that optimizer had tensor i frozen. Throws InvalidArgument
  // if `params` are not float32 parameters of the layout, and CommError if the results are damaged
  // or of another step; nothing has changed then.
  void apply(const Parameters& params, std::span<const bool> frozen, const StepContext& own,
             std::span<const std::byte> results);

 private:
  void check(const Parameters& params, std::span<const bool> frozen) const;
  void take(const StepContext& ctx, std::span<const std::byte> results);
  void take_frame(const Part& part, std::size_t shard, const StepContext& ctx,
                  std::span<const std::byte> result, std::span<std::byte> out);

  Layout layout_;
  Space& space_;
  std::unique_ptr<Method> method_;  // its state is not allocated
  std::vector<Bucket> buckets_;
  std::optional<BucketStep> step_;
  PlacedParameters parameters_;
  std::vector<char> unused_, frozen_;  // by tensor
  std::vector<Flight> flights_;        // by bucket
  Space::Event applied_ = 0;           // after it the flights' frames may be overwritten
};

}  // namespace pride
