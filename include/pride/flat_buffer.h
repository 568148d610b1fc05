// FlatBuffer: an owning array of floats, zeroed and aligned to 64 bytes, that a Layout describes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace pride {

class Memory;

class FlatBuffer {
 public:
  FlatBuffer() = default;
  explicit FlatBuffer(std::size_t n);
  // In the given memory, which the host may not be able to access.
  FlatBuffer(std::size_t n, Memory& memory);
  // With any content: for values that are written before they are read.
  static FlatBuffer room(std::size_t n, Memory& memory);

  std::span<float> span() noexcept { return {data_.get(), n_}; }
  std::span<const float> span() const noexcept { return {data_.get(), n_}; }
  float* data() noexcept { return data_.get(); }
  const float* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return n_; }

  // Another buffer over the same floats.
  FlatBuffer alias() const;

  // Keeps the floats alive beyond the buffer.
  std::shared_ptr<const void> memory() const noexcept { return data_; }

  FlatBuffer(FlatBuffer&& other) noexcept = default;
  FlatBuffer& operator=(FlatBuffer&& other) noexcept = default;

 private:
  std::shared_ptr<float[]> data_;
  std::size_t n_ = 0;
};

}  // namespace pride
