// Frame: the 64-byte header in front of everything that one rank sends another in an exchange.
// Byte layout: docs/wire_format.md. A frame that fails a check is a CommError naming the sender.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pride/wire.h"

namespace pride {

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::uint32_t kFrameMagic = 0x31445250;  // "PRD1" in memory order
inline constexpr std::uint16_t kFrameVersion = 1;
inline constexpr int kMaxWorld = 65535;  // ranks and counts are 16 bits on the wire

// Written to the wire: do not change the values.
enum class Codec : std::uint8_t {
  kSign = 1,
  kVote = 2,
  kCount = 3,
  kDense = 4,
  kMean = 5,
  kTernary = 6,
  kSum = 7,
  kSparse = 8,
  kScaledSign = 9,
  kScales = 10,
  kPackedCount = 11,
  kLevels = 12,
  kRollCall = 13,
  kValues = 14,
  kMeanValues = 15,
  kSamples = 16,
  kDenseBf16 = 17,
  kMeanBf16 = 18,
  kAllSigns = 19
};
std::string_view codec_name(Codec codec);

// What the sender claims, and what the receiver expects.
struct FrameHeader {
  Codec codec = Codec::kSign;
  std::uint32_t bucket = 0;
  std::uint16_t rank = 0;    // the sender
  std::uint16_t weight = 1;  // ranks whose votes this frame holds
  std::uint64_t step = 0;
  std::uint64_t n_coords = 0;  // of the shard, padding included
  std::uint64_t scalars = 0;   // digest of the step's scalars
  std::optional<Poison> poison;
};

// Where the payload of a frame lies: behind the header, and for dense frames a second part that
// travels as a message of its own.
struct Payload {
  std::span<const std::byte> first;
  std::span<const std::byte> second = {};
  std::size_t size() const noexcept { return first.size() + second.size(); }
};

// Writes the header with its checksum.
// REQUIRES: header.size() == kHeaderBytes.
void seal(const FrameHeader& h, std::span<std::byte> header, const Payload& payload);

// Checks everything against `expected` (its poison is ignored) and returns the sender's poison.
// `where` begins the error text, e.g. "sign_vote, bucket 3". Throws CommError.
std::optional<Poison> open(std::span<const std::byte> header, const Payload& payload,
                           const FrameHeader& expected, const std::string& where);

// For payloads whose size only the sender knows: what the header says, before the payload is here
// and the header can be trusted. Throws CommError if it is not a header of this version or claims
// more than `most` bytes.
std::size_t claimed_payload(std::span<const std::byte> header, std::size_t most, int from,
                            const std::string& where);

}  // namespace pride
