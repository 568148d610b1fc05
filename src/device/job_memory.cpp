// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "device/job_cases.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t kGuard = 64;          // bytes behind each array that no kernel may write
constexpr std::size_t kArrayAligned = 256;  // as a device's own memory

std::size_t aligned(std::size_t bytes) {
  return (bytes + kArrayAligned - 1) / kArrayAligned * kArrayAligned;
}

}  // namespace

JobMemory::~JobMemory() {
  if (device_ == nullptr) return;
  for (const auto& block : blocks_) {
    if (piece_ == nullptr) device_->free(block->memory);
  }
  device_->free(piece_);
  try {
    device_->wait(device_->record());  // copies may still read `host`
    device_->free_host(pinned_);
  } catch (const Error&) {
    return;  // the caller gets that error; pinned_ stays, as the queue may still use it
  }
}

void* JobMemory::add(std::span<const std::byte> bytes, std::size_t whole) {
  if (whole > bytes.size()) return repeated(bytes, whole);
  auto block = std::make_unique<Block>();
  block->host.assign(bytes.begin(), bytes.end());
  block->host.resize(bytes.size() + kGuard, std::byte{0x5A});
  block->memory = block->host.data();
  if (piece_ != nullptr) {
    block->memory = piece_ + room_;
  } else if (device_ != nullptr) {
    block->memory = device_->allocate(block->host.size());
    device_->copy_in(block->memory, block->host.data(), block->host.size());
  }
  bytes_ += bytes.size();
  room_ += aligned(block->host.size());
  blocks_.push_back(std::move(block));
  return blocks_.back()->memory;
}

// Copies the pattern to the device and doubles it there by copies.
void* JobMemory::repeated(std::span<const std::byte> pattern, std::size_t whole) {
  auto block = std::make_unique<Block>();
  block->host.assign(pattern.begin(), pattern.end());
  auto* const memory = static_cast<std::byte*>(device_->allocate(whole));
  block->memory = memory;
  device_->copy_in(memory, block->host.data(), pattern.size());
  for (std::size_t done = pattern.size(); done < whole; done *= 2) {
    device_->copy(memory + done, memory, std::min(done, whole - done));
  }
  bytes_ += whole;
  blocks_.push_back(std::move(block));
  return memory;
}

void JobMemory::upload() {
  pinned_ = static_cast<std::byte*>(device_->allocate_host(room_));
  std::byte* at = pinned_;
  for (const auto& block : blocks_) {
    std::ranges::copy(block->host, at);
    at += aligned(block->host.size());
  }
  device_->copy_in(piece_, pinned_, room_);
}

std::vector<std::vector<std::byte>> JobMemory::in_one_copy() const {
  device_->copy_out(pinned_, piece_, room_);
  device_->wait(device_->record());
  std::vector<std::vector<std::byte>> all;
  const std::byte* at = pinned_;
  for (const auto& block : blocks_) {
    all.emplace_back(at, at + block->host.size());
    at += aligned(block->host.size());
  }
  return all;
}

std::vector<std::vector<std::byte>> JobMemory::contents() const {
  if (piece_ != nullptr) return in_one_copy();
  std::vector<std::vector<std::byte>> all;
  for (const auto& block : blocks_) {
    all.push_back(block->host);
    if (device_ != nullptr) device_->copy_out(all.back().data(), block->memory, all.back().size());
  }
  if (device_ != nullptr) device_->wait(device_->record());
  return all;
}

std::string first_difference(const std::vector<std::vector<std::byte>>& expected,
                             const std::vector<std::vector<std::byte>>& actual) {
  for (std::size_t array = 0; array < expected.size(); ++array) {
    for (std::size_t i = 0; i < expected[array].size(); ++i) {
      if (expected[array][i] != actual[array][i]) {
        return concat("array ", array, ", byte ", i, ": expected ",
                      std::to_integer<int>(expected[array][i]), ", got ",
                      std::to_integer<int>(actual[array][i]));
      }
    }
  }
  return "";
}

}  // namespace pride
