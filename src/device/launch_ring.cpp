// SPDX-License-Identifier: Apache-2.0
#include "device/launch_ring.h"

#include <algorithm>
#include <bit>

namespace pride::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

LaunchRing::~LaunchRing() { release(); }

LaunchRing::Room LaunchRing::take(std::size_t bytes) {
  const std::size_t room = aligned(bytes);
  if (host_ == nullptr || room > size_) {
    allocate(std::bit_ceil(std::max(room, size_)));
  } else if (used_ + room > size_) {
    next_part();
  }
  const std::size_t at = part_ * size_ + used_;
  used_ += room;
  return {.host = host_ + at, .device = on_device_ + at};
}

void LaunchRing::next_part() {
  left_[part_] = device_.record();
  part_ = (part_ + 1) % kParts;
  used_ = 0;
  device_.wait(left_[part_]);
}

void LaunchRing::allocate(std::size_t part_bytes) {
  if (host_ != nullptr) device_.wait(device_.record());  // copies read the old memory
  release();
  host_ = static_cast<std::byte*>(device_.allocate_host(kParts * part_bytes));
  on_device_ = static_cast<std::byte*>(device_.allocate(kParts * part_bytes));
  size_ = part_bytes;
  part_ = used_ = 0;
  left_ = {};
}

void LaunchRing::release() noexcept {
  if (on_device_ != nullptr) device_.free(on_device_);
  if (host_ != nullptr) device_.free_host(host_);
  host_ = on_device_ = nullptr;
}

}  // namespace pride::cuda
