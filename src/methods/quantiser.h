// Quantiser: the blend of momentum and gradient as p-bit levels. Lion Cub's second factor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/level_calls.h"
#include "methods/shared_scales.h"

namespace pride::methods {

// Size of a level: with s the largest level, the magnitude c of a scope (kernels::Total) becomes
//   l0, l1, l2 (geometric mean, mean, root mean square): c = s/2, so that magnitudes above 2c
//   saturate;
//   max: c = s.
//
// A scope, the coordinates that share a scale, is an aligned block of kScaleBlock flat coordinates
// (of one tensor), or a whole tensor. Scales of tensors may be shared, equal on all ranks: the
// largest of them for kMaximum, else the mean. Otherwise each rank has its own, and levels only
// weight votes.
class Quantiser {
 public:
  // Reads its options from ctx. Throws InvalidArgument, naming the method, on values out of range
  // and on scales by block with `shared`.
  Quantiser(const MethodContext& ctx);

  // True if scales need whole tensors before anything is encoded.
  bool needs_whole_gradient() const noexcept { return by_tensor_; }

  // The part that makes scales equal on all ranks, if any, and its server half.
  std::optional<Part> preliminary() const;
  void serve(const VoterFrames& voters, Reply& reply) const { shared_->serve(voters, reply); }

  // Scales of this step, if they are of tensors. `m` and `e` (error feedback; may be
  // empty) are flat. With `shared` they go to `preliminary`, and take_preliminary() gets the common
  // ones.
  void encode_preliminary(Space& space, const StepContext& ctx, GradientView g,
                          std::span<const float> m, std::span<const float> e, Wire& preliminary);
  void take_preliminary(const Wire& preliminary) { shared_->read(preliminary, scales_); }

  struct Buffers {
    GradientView g;  // of all tensors; the other buffers are the piece's
    std::span<float> m;
    std::span<const float> e;  // quantisation error of earlier steps; empty: no feedback
    std::span<float> e_next;   // quantisation error of this step
  };

  // Copies encode_preliminary()'s scales, as sizes of levels of this many bits, to where encode()
  // reads them.
  void place_steps(Space& space, int bits);
  // u = beta1 m + (1-beta1) g (+ e);  m = beta2 m + (1-beta2) g;  writes the levels of u to
  // `lines`.
  void encode(Space& space, const Piece& piece, const StepContext& ctx, const Buffers& buffers,
              const kernels::LevelLines& lines, FaultSlot fault);

  static std::string host_only(const OptionValues& options);  // MethodEntry::host_only

 private:
  std::span<float> block_steps(const Piece& piece);

  Layout layout_;
  kernels::Size size_;
  bool by_tensor_, stochastic_;
  std::optional<SharedScales> shared_;
  std::vector<float> scales_;          // c of each tensor with coordinates; none by block
  std::vector<std::size_t> scale_of_;  // by tensor: its index there
  std::shared_ptr<float[]> steps_;     // sizes of levels, by tensor or block
  ByteBuffer placed_;                  // those by tensor, on the way there
};

}  // namespace pride::methods
