// Wire: the buffers of one bucket in flight, from encode to apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pride {

// Bytes aligned to 64; resize() keeps memory when it shrinks and does not clear it.
class ByteBuffer {
 public:
  void resize(std::size_t n_bytes);
  std::span<std::byte> span() noexcept { return {data_.get(), size_}; }
  std::span<const std::byte> span() const noexcept { return {data_.get(), size_}; }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return capacity_; }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

// A NaN or Inf that stops a bucket: where it was seen.
struct Poison {
  static constexpr int kSum = -1;  // in no rank's gradient: their mean overflows
  int rank = 0;
  std::uint32_t tensor = 0;  // index in the layout
};

// Frames of one bucket. `up[j]` goes to the owner of shard j, `in[i]` came from rank i for this
// rank's shard, `down[j]` is the result for shard j. A method's encode fills up, its exchange the
// rest, its apply reads down.
struct Wire {
  // In the direct form up[rank], which goes to all, in[i] and down[rank] are about the whole
  // bucket.
  std::vector<ByteBuffer> up, in, down;
  // In two levels `in[h * L + i]` came from rank i of this host's L, for the shard of this rank's
  // colleague on host h; host_up[h] is the host's counts about that shard, which go there, and
  // host_in[h] those of host h about this rank's shard.
  std::vector<ByteBuffer> host_up, host_in;
  std::span<const float> dense_up;  // this rank's gradients of the bucket, as backward left them
  ByteBuffer dense_bf16;            // the same rounded, where that is what is sent
  ByteBuffer dense_in;              // dense methods: the ranks' floats for this rank's shard
  ByteBuffer dense_mean;            // dense methods: the mean, whole bucket
  ByteBuffer owner_accumulated;     // error feedback: floats that this owner compressed, its shard
  std::optional<Poison> poison;     // after encode: this rank's; after exchange: agreed by all

  // Wire k for what a method exchanges beside its buckets; made when first asked for.
  Wire& extra(std::size_t k);
  const Wire& extra(std::size_t k) const { return *extras_.at(k); }

  std::size_t capacity_bytes() const noexcept;

 private:
  std::vector<std::unique_ptr<Wire>> extras_;
};

}  // namespace pride
