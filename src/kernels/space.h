// Space: where a method's tensors and state lie and its kernels run: the host, at once; or a
// device, in the order of its queue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/memory.h"
#include "base/step.h"
#include "kernels/kernels.h"
#include "kernels/radix.h"

namespace pride {

// Where a kernel notes a tensor with a NaN or Inf: the lowest number stays.
struct FaultSlot {
  std::uint32_t* word = nullptr;
  std::uint32_t tensor = 0;

  void note() const noexcept {
    if (tensor < *word) *word = tensor;
  }
};

// All floats, and all words but those called `frame`, lie in the space. Kernels of a device run in
// the order of their first calls since the last barrier(), all calls of one kernel together: a
// method calls kernels that depend on each other in one order for all its pieces, or calls
// barrier().
class Space : public Memory {
 public:
  static Space& host();

  // ---- Frames. On the host, kernels work in the frames themselves.

  // Words for kernels to write, which send() then copies to the frame.
  virtual std::span<std::uint64_t> stage(std::span<std::uint64_t> frame) = 0;
  virtual void send(std::span<const std::uint64_t> staged, std::span<std::uint64_t> frame) = 0;
  // A part of a frame, for kernels to read.
  template <typename T>
  std::span<const T> bring(std::span<const T> frame) {
    return {reinterpret_cast<const T*>(bring_bytes(std::as_bytes(frame))), frame.size()};
  }
  // The word that kernels note faults in, and its copy to the host's.
  virtual std::uint32_t* watch(std::uint32_t& word) = 0;
  virtual void report(const std::uint32_t* watched, std::uint32_t& word) = 0;

  // ---- The kernels of kernels/kernels.h.

  virtual void clear(std::span<std::uint64_t> words) = 0;  // to 0
  virtual void lion_sign_update(const Values& g, const kernels::Blend& blend,
                                kernels::HashWords zeros, std::span<float> m,
                                std::span<std::uint64_t> bits, FaultSlot fault) = 0;
  virtual void apply_signs(std::span<const std::uint64_t> bits, kernels::Step step,
                           std::span<float> x) = 0;
  virtual void apply_ternary(std::span<const std::uint64_t> positive,
                             std::span<const std::uint64_t> nonzero, kernels::Step step,
                             std::span<float> x) = 0;
  virtual void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                            std::size_t plane_stride, int present, int world, kernels::Step step,
                            std::span<float> x) = 0;
  virtual void apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                                   std::size_t first_word, int present, int world,
                                   kernels::Step step, std::span<float> x) = 0;
  virtual void apply_decay(float decay, std::span<float> x) = 0;

  // ---- Parameters in bfloat16 or float16 and their masters.

  // master = the value where that is not the rounded master; and values = the rounded masters.
  virtual void adopt(const void* values, DType dtype, std::span<float> master) = 0;
  virtual void publish(std::span<const float> master, DType dtype, void* values) = 0;

  // ---- Order. Of the host: nothing to do.

  using Event = std::uint64_t;
  virtual void barrier() {}
  // Frames that were staged and brought before are no longer needed by calls to come.
  virtual void begin_frames() {}
  virtual Event record() { return 0; }
  virtual void wait(Event /*event*/) {}  // from any thread
  // The queue goes on after the work of the caller's stream so far; and the stream after the queue.
  virtual void after(void* /*stream*/) {}
  virtual void before(void* /*stream*/) {}

 private:
  virtual const std::byte* bring_bytes(std::span<const std::byte> frame) = 0;
};

}  // namespace pride
