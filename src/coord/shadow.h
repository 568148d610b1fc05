// Shadow: the workers' shared parameters and state, updated by applying records. A coordinator with
// a shadow computes the hash before each round itself, and needs no worker's parameters.
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

// The optimizer's options that records do not contain.
OptimizerOptions options_of(const RunDescription& run);

class Shadow {
 public:
  // Needs the memory of a worker's optimizer: parameters and the method's state.
  explicit Shadow(const RunDescription& run);
  ~Shadow();

  // Parameters before a round, as workers send them. REQUIRES: Serving::parameter_floats().
  void take(std::int64_t before_round, std::span<const float> params);
  // Throws CommError, and has changed nothing, unless the record is of round() and has hash().
  // REQUIRES: take() was called.
  void apply(std::span<const std::byte> record, const std::string& where);

  std::int64_t round() const;  // the parameters are those before this round; -1: none yet
  FlatBuffer params() const;
  std::uint64_t hash() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride::coord
