// Space: the memory of a method's tensors and state, and where its kernels run: on the host at
// once, on a device in the order of its queue.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/memory.h"
#include "base/step.h"
#include "kernels/kernels.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"

namespace pride {

// A word in which a kernel notes a tensor with a NaN or Inf. The lowest number stays.
struct FaultSlot {
  std::uint32_t* word = nullptr;
  std::uint32_t tensor = 0;

  void note() const noexcept {
    if (tensor < *word) *word = tensor;
  }
};
// A word of faults, or null. A kernel with a guard does nothing if a fault was noted there.
using Guard = const std::uint32_t*;

class LevelKernels;

// All floats lie in the space, and all words except those called `frame`. A device runs kernels as
// if in the order of their calls. It merges independent calls of one kernel into one launch.
class Space : public Memory {
 public:
  static Space& host();
  static std::unique_ptr<Space> make_host();  // with its own count in held()

  // ---- Frames. On the host, kernels work in the frames themselves.

  // Memory of several frames, of which a device has one copy until begin_frames(): stage(), bring()
  // and watch() then give parts of it. stage_block() begins with 0, and send() and report() of
  // parts copy the whole block to the host, once. bring_block() begins with what the host has.
  virtual void stage_block(std::span<std::byte> /*block*/) {}
  virtual void bring_block(std::span<const std::byte> /*block*/) {}

  // A part of a frame for kernels to write, which send() then copies to the frame.
  template <typename T>
  std::span<T> stage(std::span<T> frame) {
    return {reinterpret_cast<T*>(stage_bytes(std::as_writable_bytes(frame))), frame.size()};
  }
  template <typename T>
  void send(std::span<T> staged, std::span<T> frame) {
    send_bytes(staged.data(), std::as_writable_bytes(frame));
  }
  // A part of a frame, for kernels to read.
  template <typename T>
  std::span<const T> bring(std::span<const T> frame) {
    return {reinterpret_cast<const T*>(bring_bytes(std::as_bytes(frame))), frame.size()};
  }
  // The word in which kernels note faults; report() copies it to the host's `word`.
  virtual std::uint32_t* watch(std::uint32_t& word) = 0;
  virtual void report(const std::uint32_t* watched, std::uint32_t& word) = 0;

  // ---- Words of faults that outlive a step's frames.

  // Allocates n words of faults. The caller must call forget() on them before the first use.
  std::shared_ptr<std::uint32_t[]> fault_words(std::size_t n);
  virtual void forget(std::span<std::uint32_t> words) = 0;
  virtual std::uint32_t fault_in(Guard word) = 0;  // waits for queued work

  // ---- The kernels of kernels/kernels.h.

  virtual void clear(std::span<std::uint64_t> words) = 0;  // to 0
  // On a device shared bits are those of cells.
  virtual void lion_sign_update(const Values& g, const kernels::Blend& blend,
                                const kernels::SharedBits& zeros, Floats m,
                                std::span<std::uint64_t> bits, FaultSlot fault) = 0;
  virtual void lion_blend(const Values& g, const kernels::Blend& blend, Floats m,
                          std::span<float> u, FaultSlot fault, Guard guard = nullptr) = 0;
  // If the guard has a fault, all bits become 0 and `fault` is noted.
  virtual void pack_signs(std::span<const float> p, const kernels::SharedBits& zeros,
                          std::span<std::uint64_t> bits, Guard guard, FaultSlot fault) = 0;
  virtual void cell_bits(const kernels::SharedBits& cells, std::span<std::uint64_t> bits) = 0;
  virtual void check(const Values& g, FaultSlot fault) = 0;
  virtual void apply_signs(std::span<const std::uint64_t> bits, kernels::Step step, Floats x) = 0;
  virtual void apply_ternary(std::span<const std::uint64_t> positive,
                             std::span<const std::uint64_t> nonzero, kernels::Step step,
                             Floats x) = 0;
  virtual void apply_counts(std::span<const std::uint64_t> planes, std::size_t n_planes,
                            std::size_t plane_stride, int present, int world, kernels::Step step,
                            Floats x) = 0;
  virtual void apply_packed_counts(std::span<const std::uint32_t> packed, kernels::Radix radix,
                                   std::size_t first_word, int present, int world,
                                   kernels::Step step, Floats x) = 0;
  virtual void apply_decay(float decay, Floats x) = 0;

  // Signs and scales of p = feedback(g, m, e), block by block. A scale that is not finite is a
  // fault. If g.data is null, g is 0; the same in keep_feedback().
  virtual void compress(const Values& g, const kernels::Feedback& f, kernels::Norm norm,
                        kernels::HashWords zeros, std::span<const float> m,
                        std::span<const float> e, std::span<std::uint64_t> bits,
                        kernels::BlockScales<float> scales, FaultSlot fault) = 0;
  virtual void keep_feedback(const Values& g, const kernels::Feedback& f,
                             std::span<const std::uint64_t> bits,
                             kernels::BlockScales<const float> scales, std::span<float> m,
                             std::span<float> e) = 0;
  // apply_signs with a scale as the rate.
  virtual void apply_scaled_signs(std::span<const std::uint64_t> bits,
                                  kernels::BlockScales<const float> scales, float decay,
                                  Floats x) = 0;

  virtual void adamw(const Values& g, const kernels::AdamScalars& s, std::span<float> m,
                     std::span<float> v, Floats x, Guard guard = nullptr) = 0;
  virtual void dense_lion(const Values& g, const kernels::Blend& blend, kernels::Step step,
                          Floats m, Floats x, Guard guard = nullptr) = 0;
  virtual void sgd_momentum(const Values& g, float momentum, bool nesterov, kernels::Step step,
                            std::span<float> m, Floats x, Guard guard = nullptr) = 0;

  virtual void widen(const Values& g, std::span<float> out) = 0;
  virtual void copy(ConstFloats from, Floats to) = 0;
  virtual void fill(std::span<float> x, float value) = 0;
  virtual void poison(std::span<float> x, Guard guard) = 0;  // fills with NaN if there is a fault
  virtual void sum(ConstFloats a, std::span<const float> b, Floats out) = 0;
  virtual void scale(float factor, std::span<float> x) = 0;
  virtual void find(std::span<const float> x, FaultSlot found) = 0;  // notes if one is not 0

  // ---- Parameters in float16 and their masters.

  // adopt: master = value where the value is not the rounded master. publish: the rounded masters.
  virtual void adopt(const Float16* values, std::span<float> master) = 0;
  virtual void publish(std::span<const float> master, Float16* values) = 0;

  virtual std::size_t scratch_bytes() const noexcept { return 0; }  // of a device, not in held()
  // Null on the host.
  virtual LevelKernels* levels() { return nullptr; }

  // ---- Order. The host does nothing here.

  using Event = std::uint64_t;
  // Queues the caller's own work on the device's memory. REQUIRES: not the host.
  virtual void call(const std::function<void(void* stream)>& body);
  // Later calls do not use what stage(), bring() and watch() have returned so far.
  virtual void begin_frames() {}
  virtual Event record() { return 0; }
  virtual void wait(Event /*event*/) {}  // from any thread
  // after: the queue waits for the caller's stream. before: the stream waits for the queue.
  virtual void after(void* /*stream*/) {}
  virtual void before(void* /*stream*/) {}

 private:
  virtual const std::byte* bring_bytes(std::span<const std::byte> frame) = 0;
  virtual std::byte* stage_bytes(std::span<std::byte> frame) = 0;
  virtual void send_bytes(const void* staged, std::span<std::byte> frame) = 0;
};

}  // namespace pride
