// Shadow: the workers' shared parameters and state, updated by applying records. With one a
// coordinator knows the hash before each round and needs no worker's parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pride/coordinator.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"

namespace pride::coord {

// The worker's options that are not in the records.
OptimizerOptions options_of(const RunDescription& run);

class Shadow {
 public:
  // Needs the memory of a worker's optimizer: parameters and the method's state.
  explicit Shadow(const RunDescription& run);
  ~Shadow();

  // Parameters before a round, as workers send them. REQUIRES: Serving::parameter_floats().
  void take(std::int64_t before_round, std::span<const float> params);
  // Throws CommError, and has changed nothing, unless it is the record of the next round, for
  // parameters with this hash. REQUIRES: take() was called.
  void apply(std::span<const std::byte> record, const std::string& where);

  std::int64_t round() const;  // round before which the parameters are; -1: none yet
  FlatBuffer params() const;
  std::uint64_t hash() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::coord
