// MomentumSync: selection and exchange of the momenta averaged over the ranks. Lion Cub's third
// factor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codecs/levels.h"
#include "methods/sync_schedule.h"
#include "pride/layout.h"
#include "routes/protocol.h"

namespace pride::methods {

// "fp32", "bf16", or "2" to "8": levels of that many bits. Throws InvalidArgument, naming the
// method.
ValueFormat value_format(const std::string& method, const std::string& text);

class MomentumSync {
 public:
  // Each chosen coordinate is averaged once in an interval of the schedule; all steps of an
  // interval average equally many of them.
  MomentumSync(const Layout& layout, std::vector<char> chosen, SyncSchedule schedule,
               ValueFormat format);

  // The bucket's momenta that are due, sharded; empty if there are none. The selection does not
  // depend on the cut into buckets.
  std::optional<Part> part(const Bucket& bucket, const SharedContext& shared) const;

  // Encodes values in the format. A value outside the format's range is a fault.
  void encode(Space& space, const Bucket& bucket, const StepContext& ctx, std::span<const float> m,
              const Part& part, Wire& wire) const;

  // The mean over the ranks, added in rank order and encoded in the format.
  void serve(const Shard& shard, const VoterFrames& voters, const SharedContext& shared,
             Reply& reply) const;

  void apply(Space& space, const Bucket& bucket, const StepContext& ctx, const Part& part,
             const Wire& wire, std::span<float> m) const;

  bool empty() const noexcept { return n_blocks_ == 0; }  // true: no momentum is averaged
  const ValueFormat& format() const noexcept { return format_; }

 private:
  // Flat coordinates, multiples of 64.
  struct Range {
    std::size_t begin = 0, end = 0, tensor = 0;
    std::size_t n() const noexcept { return end - begin; }
  };
  template <typename Body>
  static void for_parts(std::span<const Range> ranges, const Shard& shard, const Body& body);
  std::vector<Range> due(const Bucket& bucket, std::int64_t step) const;

  std::vector<char> chosen_;
  std::vector<std::size_t> first_block_;  // by tensor: index among the chosen blocks of 64
  std::size_t n_blocks_ = 0;
  std::vector<std::size_t> offset_;  // by tensor
  SyncSchedule schedule_;
  ValueFormat format_;
};

}  // namespace pride::methods
