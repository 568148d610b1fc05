// SPDX-License-Identifier: Apache-2.0
#include "device/device_space.h"

#include <utility>

namespace pride {

void DeviceSpace::queue(const kernels::Call& call) {
  batches_.add(device::job_of(call), device::Touches(call));
}

// If a launch fails, it and all after it are dropped.
void DeviceSpace::flush() {
  const auto forget = [](DeviceSpace* space) {
    space->batches_.clear();
    space->sent_.clear();
  };
  const std::unique_ptr<DeviceSpace, decltype(forget)> at_the_end(this, forget);
  if (behind_) device_->after(*std::exchange(behind_, std::nullopt));
  batches_.launch(*device_);
  for (const Sent& sent : sent_) {
    device_->copy_out(sent.frame.data(), sent.staged, sent.frame.size());
  }
}

// Before later calls: what is collected stays, unless it uses the words.
void DeviceSpace::set_bytes(std::span<std::byte> words, std::byte value) {
  if (words.empty()) return;
  if (batches_.conflict(device::Touches(words))) flush();
  const std::uint32_t word = 0x01010101U * std::to_integer<std::uint32_t>(value);
  device_->fill(words.data(), word, words.size() / sizeof word);
}

void DeviceSpace::call(const std::function<void(void*)>& body) {
  flush();
  device_->call([this, body] { body(device_->stream()); });
}

Space::Event DeviceSpace::record() {
  flush();
  return device_->record();
}

// The queue waits when something is queued: once for all calls that come before it.
void DeviceSpace::after(void* stream) {
  if (behind_ && *behind_ != stream) flush();
  behind_ = stream;
}

void DeviceSpace::before(void* stream) {
  flush();
  device_->before(stream);
}

}  // namespace pride
