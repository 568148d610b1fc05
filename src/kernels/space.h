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
#include "base/wire.h"
#include "kernels/calls.h"

namespace pride {

// All floats lie in the space, and all words except those called `frame`. A device runs kernels as
// if in the order of their calls. It merges independent calls of one kernel into one launch.
class Space : public Memory {
 public:
  static Space& host();
  static std::unique_ptr<Space> make_host();  // with its own count in held()

  // ---- Frames. On the host, kernels work in the frames themselves.

  // Memory of several frames, of which a device has one copy until begin_frames(): stage(),
  // upload() and watch() then give parts of it. stage_block() begins with 0, and send() and
  // report() of parts copy the whole block to the host, once. upload_block() begins with what the
  // host has.
  virtual void stage_block(std::span<std::byte> /*block*/) {}
  virtual void upload_block(std::span<const std::byte> /*block*/) {}

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
  std::span<const T> upload(std::span<const T> frame) {
    return {reinterpret_cast<const T*>(upload_bytes(std::as_bytes(frame))), frame.size()};
  }
  // The word in which kernels note faults; report() copies it to the host's `word`.
  std::uint32_t* watch(std::uint32_t& word);
  void report(const std::uint32_t* watched, std::uint32_t& word) {
    send_bytes(watched, std::as_writable_bytes(std::span(&word, 1)));
  }

  // ---- Words of faults that outlive a step's frames.

  // Allocates n words of faults. The caller must call forget() on them before the first use.
  std::shared_ptr<std::uint32_t[]> fault_words(std::size_t n);
  void forget(std::span<std::uint32_t> words) {
    static_assert(Wire::kNoTensor == ~std::uint32_t{0});
    set_bytes(std::as_writable_bytes(words), std::byte{0xFF});
  }
  std::uint32_t fault_in(Guard word);  // waits for queued work

  // ---- Kernels.

  // Runs a call of kernels/calls.h. The host needs no variant of calls for it.
  template <typename Call>
  void run(const Call& call) {
    if (is_host()) return call.run();
    queue(call);
  }
  void clear(std::span<std::uint64_t> words) {  // to 0
    set_bytes(std::as_writable_bytes(words), std::byte{0});
  }

  virtual std::size_t scratch_bytes() const noexcept { return 0; }  // of a device, not in held()

  // ---- Order. The host does nothing here.

  using Event = std::uint64_t;
  // Queues the caller's own work on the device's memory. REQUIRES: not the host.
  virtual void call(const std::function<void(void* stream)>& body);
  // Later calls do not use what stage(), upload() and watch() have returned so far.
  virtual void begin_frames() {}
  virtual Event record() { return 0; }
  virtual void wait(Event /*event*/) {}  // from any thread
  // after: the queue waits for the caller's stream. before: the stream waits for the queue.
  virtual void after(void* /*stream*/) {}
  virtual void before(void* /*stream*/) {}

 private:
  virtual void queue(const kernels::Call& /*call*/) {}  // of a device
  virtual void set_bytes(std::span<std::byte> words, std::byte value) = 0;
  virtual const std::byte* upload_bytes(std::span<const std::byte> frame) = 0;
  virtual std::byte* stage_bytes(std::span<std::byte> frame) = 0;
  virtual void send_bytes(const void* staged, std::span<std::byte> frame) = 0;
};

}  // namespace pride
