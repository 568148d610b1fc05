// Format of a message of c10d_comm on its stream, and the calls of c10d that move one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "c10d/engine.h"

namespace pride::process_group {

// Tags of c10d. A process group has one connection per peer and interface, and selects it by tag.
// The eight unused tags reach the connections of up to eight interfaces.
inline constexpr int kHeaderTag = 0, kBytesTag = 1, kFirstUnusedTag = 2, kLastUnusedTag = 9;

// c10d's default timeout would close the connections of a world that is idle for half an hour.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365 * 10);

enum Kind : std::int32_t { kMessage = 0x70726431, kHello, kFailure, kGoodbye };

// Shorter messages travel in their header.
inline constexpr std::size_t kInline = 488;

// Header of a message, in the machine's byte order: c10d needs machines of one kind. 512 bytes.
struct Header {
  std::int32_t kind = kMessage;
  std::int32_t tag = 0;
  std::uint64_t world = 0;
  std::uint64_t size = 0;
  std::byte bytes[kInline] = {};
};

// A tensor over the given bytes, and one over a copy.
at::Tensor view(const std::byte* bytes, std::size_t size);
at::Tensor copy_of(const void* bytes, std::size_t size);

// Error text; empty if the work ended well.
std::string trouble_of(::c10d::Work& work);
void finish(::c10d::Work& work);  // throws that text as a CommError

}  // namespace pride::process_group
