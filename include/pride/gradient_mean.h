// GradientMean: replaces gradients by their mean over the ranks, in few bits, for optimizers that
// are not pride's. It keeps no state.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::GradientMean mean(comm, {.dense = "int4"});
//   mean.run(gradients);  // any number of values, equal on all ranks
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
// same option, on every rank and transport.
class GradientMean {
 public:
  // `comm` must outlive this object. Throws InvalidArgument on options that adamw refuses.
  GradientMean(Communicator& comm, GradientMeanOptions options);
  ~GradientMean();
  GradientMean(const GradientMean&) = delete;
  GradientMean& operator=(const GradientMean&) = delete;

  // Replaces the values by their mean over the ranks, added in float32 and rounded to their dtype.
  // Where a value is NaN or Inf on a rank, or the mean is not finite, all values become NaN on all
  // ranks, and it returns false. `stream`: with a device, the caller's CUstream, which has written
  // the values and will read them. Collective: ranks make the same calls, with as many values, in
  // the same order. Throws CommError, which names the call, if they do not, or if one fails; Gloo
  // ends the process at another number of values.
  bool run(Tensor values, void* stream = nullptr);

  // Bytes that this rank has sent.
  std::uint64_t bytes_sent() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
