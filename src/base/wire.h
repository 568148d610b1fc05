// Wire: the buffers of one part of a bucket in flight, from encode to apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace pride {

class Memory;

// Host bytes, aligned to 64. resize() does not clear them, and shrinking keeps the memory.
class ByteBuffer {
 public:
  void resize(std::size_t n_bytes);
  void resize(std::size_t n_bytes, Memory& frames);  // from frames.frame()
  // Bytes of another buffer, whose memory stays while this needs it.
  void point_at(const ByteBuffer& whole, std::size_t first, std::size_t n_bytes);
  std::span<std::byte> span() noexcept { return {data_.get(), size_}; }
  std::span<const std::byte> span() const noexcept { return {data_.get(), size_}; }
  std::span<float> floats() noexcept {
    return {reinterpret_cast<float*>(data_.get()), size_ / sizeof(float)};
  }
  std::span<const float> floats() const noexcept {
    return {reinterpret_cast<const float*>(data_.get()), size_ / sizeof(float)};
  }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return capacity_; }  // of its own memory

 private:
  std::shared_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// Location of a NaN or Inf that stops a bucket.
struct NonFinite {
  static constexpr int kSum = -1;            // no single rank's gradient: the mean overflows
  static constexpr int kModelParallel = -2;  // OptimizerOptions::model_parallel_sum reports it
  int rank = 0;
  std::uint32_t tensor = 0;  // index in the layout
  auto operator<=>(const NonFinite&) const = default;
};

// Frames by shard: up[j] goes to the server of shard j, down[j] is its result. A part that covers a
// whole bucket has one of each. A method's encode fills `up`, its server `down`; its apply reads
// `down`.
struct Wire {
  std::vector<ByteBuffer> up, down;  // heads
  ByteBuffer up_block, down_block;   // with a device: memory of `up` and `fault`, and of `down`
  std::vector<std::span<const std::byte>> up_body;  // bodies, sent without a copy
  std::vector<std::span<std::byte>> down_body;      // receive buffers of the results' bodies
  ByteBuffer room;                                  // scratch memory of the method: bodies, sums
  ByteBuffer pending;                               // the server's next state, until apply()
  ByteBuffer cells;  // with a device: SharedBits of cells, of the shard that this rank serves
  std::optional<NonFinite> non_finite;  // after encode: this rank's; after exchange: of all ranks
  // The word in `fault` is kNoTensor or the first non-finite tensor; valid after encode().
  static constexpr std::uint32_t kNoTensor = 0xFFFFFFFF;
  ByteBuffer fault;
  std::uint32_t& fault_word() noexcept {
    return *reinterpret_cast<std::uint32_t*>(fault.span().data());
  }
  std::span<const char> unused;  // by tensor: 1 if this rank contributes nothing to it

  std::size_t capacity_bytes() const noexcept;
};

}  // namespace pride
