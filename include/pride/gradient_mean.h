// GradientMean: replaces gradients by their mean over the ranks, in few bits, for optimizers that
// are not pride's. It keeps no state.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::GradientMean mean(comm, {.dense = "int4"});
//   mean.run(gradients, sizes);
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pride/communicator.h"
#include "pride/device.h"
#include "pride/tensors.h"

namespace pride {

struct GradientMeanOptions {
  std::string dense = "int4";                // option `dense` of adamw: docs/methods/dense.md
  std::shared_ptr<Device> device = nullptr;  // of the values; null: the host
};

// One thread at a time may use an object. The bits are those of the mean that `adamw` uses with the
// same option and tensors, on every rank and transport.
class GradientMean {
 public:
  // `comm` must outlive this object. Throws InvalidArgument on options that adamw refuses.
  GradientMean(Communicator& comm, GradientMeanOptions options);
  ~GradientMean();
  GradientMean(const GradientMean&) = delete;
  GradientMean& operator=(const GradientMean&) = delete;

  // Replaces the values by their mean over the ranks, added in float32 and rounded to their dtype.
  // They are the tensors of `sizes` values, one after the other; empty: one tensor. With levels no
  // two tensors share a scale. Where a value is NaN or Inf on a rank, or the sum in float32
  // overflows, all values become NaN on all ranks, and it returns false. A mean beyond the range of
  // the dtype becomes Inf. `stream`: with a device, the caller's CUstream, which has written the
  // values and will read them. Collective: ranks make the same calls, with equal sizes, in the same
  // order. Throws CommError, which names the call, if they do not, or if one fails; Gloo ends the
  // process at other sizes. Throws InvalidArgument if the sizes do not add up to values.n.
  bool run(Tensor values, std::span<const std::size_t> sizes = {}, void* stream = nullptr);

  // Bytes that this rank has sent in run().
  std::uint64_t bytes_sent() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
