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

// Size of a level: with s the largest level, the reference magnitude c of a scope becomes
//   kGeometricMean (L0), kMeanAbs (L1), kRootMeanSquare (L2): c = s/2, so that magnitudes above
//   2c saturate;
//   kMaximum: c = s.
// kGeometricMean is 2^mean(log2(|u| + 1e-12)), but 0 where all u are 0: zeros count as 1e-12.
enum class Scale { kGeometricMean, kMeanAbs, kRootMeanSquare, kMaximum };

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
  void serve(const Ballots& up, Reply& reply) const { shared_->serve(up, reply); }

  // Scales of this step, if they are of tensors. `m` and `e` (error feedback; may be
  // empty) are flat. With `shared` they go to `preliminary`, and take_preliminary() gets the common
  // ones.
  void prepare(Space& space, const StepContext& ctx, GradientView g, std::span<const float> m,
               std::span<const float> e, Wire& preliminary);
  void take_preliminary(const Wire& preliminary) { shared_->read(preliminary, scales_); }

  struct Buffers {
    GradientView g;  // of all tensors; the other buffers are the piece's
    std::span<float> m;
    std::span<const float> e;  // quantisation error of earlier steps; empty: no feedback
    std::span<float> e_next;   // quantisation error of this step
  };

  // u = beta1 m + (1-beta1) g (+ e);  m = beta2 m + (1-beta2) g;  take(i, q) gets the levels of u
  // from coordinate i of the piece on, in ascending blocks that begin at multiples of 64.
  // Returns the first coordinate of the piece that is not finite, or kAllFinite.
  using TakeLevels = std::function<void(std::size_t i, std::span<const std::int8_t> q)>;
  std::size_t encode(const Piece& piece, const StepContext& ctx, const Buffers& buffers, int bits,
                     const TakeLevels& take) const;

  // On a device, with options for which host_only() is empty.
  static std::string host_only(const OptionValues& options);  // MethodEntry::host_only
  // Copies prepare()'s scales to the device, as sizes of levels of this many bits.
  void place_steps(Space& space, int bits);
  // encode() that writes levels to `lines`.
  void encode_on_device(Space& space, const Piece& piece, const StepContext& ctx,
                        const Buffers& buffers, int bits, const kernels::LevelLines& lines,
                        FaultSlot fault);

 private:
  // m and e are flat. Empty e: no error feedback.
  struct Flat {
    GradientView g;
    std::span<const float> m, e;
  };
  // `size`: the sum of magnitudes, their sum of squares or their maximum. `log2`: for
  // kGeometricMean the sum of their logarithms.
  struct Total {
    double size = 0, log2 = 0;
  };
  void add(double size, Total& total) const;
  void measure_on_host(const StepContext& ctx, const Flat& flat);
  void measure_on_device(Space& space, const StepContext& ctx, const Flat& flat);
  std::span<float> block_steps(Space& space, const Piece& piece);
  Total part_of(std::span<const float> u) const;
  float reference(const Total& total, std::size_t n) const;
  void blend(const Flat& flat, const kernels::Blend& rule, std::size_t tensor, std::size_t begin,
             std::span<float> u) const;
  float measure(const Flat& flat, const StepContext& ctx, std::size_t tensor) const;
  float step_of(float c, int largest) const;
  std::size_t encode_at_once(const Piece& piece, const kernels::Blend& rule, const Buffers& b,
                             std::size_t begin, int largest, std::span<std::int8_t> q) const;
  std::size_t encode_in_steps(const Piece& piece, const StepContext& ctx, const Buffers& b,
                              std::size_t begin, int largest, std::span<std::int8_t> q) const;

  Layout layout_;
  Scale scale_;
  bool by_tensor_, stochastic_;
  std::optional<SharedScales> shared_;
  std::vector<float> scales_;          // c of each tensor with coordinates; none by block
  std::vector<std::size_t> scale_of_;  // by tensor: its index there
  std::shared_ptr<float[]> steps_;     // on a device: sizes of levels, by tensor or block
  ByteBuffer placed_;                  // those by tensor, on the way there
};

}  // namespace pride::methods
