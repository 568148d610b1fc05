// DeviceSpace: memory of the device, and copies of frames.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>

#include "device/device_space.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t kLeastBlock = std::size_t{1} << 20;
constexpr std::size_t kAligned = 256;

}  // namespace

// Floats of room() that are free, by number. The next user's calls come later in the queue.
struct DeviceSpace::Kept {
  explicit Kept(std::shared_ptr<Device> owner) : device(std::move(owner)) {}
  ~Kept() {
    for (const auto& [n, memory] : free) device->free(memory);
  }
  float* take(std::size_t n) {
    const std::lock_guard lock(mutex);
    const auto found = free.find(n);
    return found == free.end() ? nullptr : free.extract(found).mapped();
  }
  void give(std::size_t n, float* memory) {
    const std::lock_guard lock(mutex);
    free.emplace(n, memory);
  }
  std::size_t bytes() {
    const std::lock_guard lock(mutex);
    std::size_t floats = 0;
    for (const auto& [n, memory] : free) floats += n;
    return floats * sizeof(float);
  }

  const std::shared_ptr<Device> device;
  std::mutex mutex;  // guards the rest
  std::multimap<std::size_t, float*> free;
};

DeviceSpace::DeviceSpace(std::shared_ptr<Device> device)
    : device_(std::move(device)), kept_(std::make_shared<Kept>(device_)) {}
DeviceSpace::~DeviceSpace() = default;

std::shared_ptr<float[]> DeviceSpace::zeros(std::size_t n) {
  auto* memory = static_cast<float*>(device_->allocate(n * sizeof(float)));
  std::shared_ptr<float[]> owner(memory, [device = device_](float* p) { device->free(p); });
  device_->fill(memory, 0, n);
  return counted(std::move(owner), n);
}

std::shared_ptr<float[]> DeviceSpace::room(std::size_t n) {
  float* memory = kept_->take(n);
  if (memory == nullptr) memory = static_cast<float*>(device_->allocate(n * sizeof(float)));
  return counted({memory, [kept = kept_, n](float* p) { kept->give(n, p); }}, n);
}

// Copies of a frame may still be queued when its owner is done with it.
std::shared_ptr<std::byte[]> DeviceSpace::frame(std::size_t bytes) {
  auto* memory = static_cast<std::byte*>(device_->allocate_host(bytes));
  return {memory, [device = device_](std::byte* p) {
            try {
              device->wait(device->record());
            } catch (const Error&) {
              return;  // the device is gone; a copy to `p` may not be
            }
            device->free_host(p);
          }};
}

void DeviceSpace::read_bytes(const void* from, std::span<std::byte> to) {
  flush();
  device_->copy_out(to.data(), from, to.size());
  device_->wait(device_->record());
}

void DeviceSpace::write_bytes(std::span<const std::byte> from, void* to) {
  flush();
  device_->copy_in(to, from.data(), from.size());
  device_->wait(device_->record());
}

// Every turn reuses the same memory. The queue runs in order, so earlier turns no longer use it.
void* DeviceSpace::scratch(std::size_t bytes) {
  bytes = (bytes + kAligned - 1) / kAligned * kAligned;
  for (; block_ < blocks_.size(); ++block_, used_ = 0) {
    if (used_ + bytes > blocks_[block_].bytes) continue;
    used_ += bytes;
    return blocks_[block_].memory.get() + (used_ - bytes);
  }
  const std::size_t size = std::max(bytes, kLeastBlock);
  auto* memory = static_cast<std::byte*>(device_->allocate(size));
  blocks_.push_back({{memory, [device = device_](std::byte* p) { device->free(p); }}, size});
  used_ = bytes;
  return memory;
}

std::size_t DeviceSpace::scratch_bytes() const noexcept {
  std::size_t bytes = kept_->bytes();
  for (const Block& block : blocks_) bytes += block.bytes;
  return bytes;
}

void DeviceSpace::begin_frames() {
  flush();
  block_ = used_ = 0;
  copied_.clear();
}

// --- Frames. -------------------------------------------------------------------------------------

const DeviceSpace::Copied* DeviceSpace::block_of(std::span<const std::byte> frame) const {
  const auto has = [frame](const Copied& c) {
    return frame.data() >= c.block.data() &&
           frame.data() + frame.size() <= c.block.data() + c.block.size();
  };
  const auto found = std::ranges::find_if(copied_, has);
  return found == copied_.end() ? nullptr : &*found;
}

// Cleared: what kernels do not write must be 0, such as padding.
void DeviceSpace::stage_block(std::span<std::byte> block) {
  std::byte* const copy = stage_bytes(block);
  device_->fill(copy, 0, block.size() / sizeof(std::uint32_t));
  copied_.push_back({block, copy});
}

void DeviceSpace::upload_block(std::span<const std::byte> block) {
  const std::byte* const copy = upload_bytes(block);
  // never written: kernels read what was brought
  copied_.push_back(
      {{const_cast<std::byte*>(block.data()), block.size()}, const_cast<std::byte*>(copy)});
}

std::byte* DeviceSpace::stage_bytes(std::span<std::byte> frame) {
  if (frame.empty()) return nullptr;
  if (const Copied* in = block_of(frame)) return in->copy + (frame.data() - in->block.data());
  return static_cast<std::byte*>(scratch(frame.size()));
}

void DeviceSpace::send_bytes(const void* staged, std::span<std::byte> frame) {
  if (frame.empty()) return;
  const Copied* const in = block_of(frame);
  const Sent sent = in != nullptr ? Sent{in->block, in->copy} : Sent{frame, staged};
  const auto same = [&](const Sent& s) { return s.staged == sent.staged; };
  if (std::ranges::none_of(sent_, same)) sent_.push_back(sent);
}

const std::byte* DeviceSpace::upload_bytes(std::span<const std::byte> frame) {
  if (frame.empty()) return nullptr;
  if (const Copied* in = block_of(frame)) return in->copy + (frame.data() - in->block.data());
  if (!sent_.empty()) flush();  // the frame may be one of them
  auto* memory = static_cast<std::byte*>(scratch(frame.size()));
  device_->copy_in(memory, frame.data(), frame.size());
  return memory;
}

}  // namespace pride
