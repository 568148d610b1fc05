// Writing and checking frame headers.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/frame.h"

#include <array>
#include <string_view>

#include "core/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t kChecksumAt = 56;
constexpr std::uint8_t kPoisonFlag = 1;

template <typename T>
void put(std::span<std::byte> out, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out[at + i] = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
}

template <typename T>
T get(std::span<const std::byte> in, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= std::to_integer<std::uint64_t>(in[at + i]) << (8 * i);
  return static_cast<T>(value);
}

// Covers the header up to the checksum, then each part of the payload, seeded by the one before.
std::uint64_t checksum(std::span<const std::byte> header, const Payload& payload) {
  const std::uint64_t first = hash_bytes(payload.first, hash_bytes(header.first(kChecksumAt)));
  return payload.second.empty() ? first : hash_bytes(payload.second, first);
}

[[noreturn]] void refuse(const std::string& where, int from, std::string_view field,
                         std::uint64_t got, std::uint64_t expected) {
  throw CommError(concat(where, ": the frame from rank ", from, " has ", field, " ", got,
                         ", this rank expects ", expected));
}

}  // namespace

std::string_view codec_name(Codec codec) {
  switch (codec) {
    case Codec::kSign:
      return "sign";
    case Codec::kVote:
      return "vote";
    case Codec::kCount:
      return "count";
    case Codec::kDense:
      return "dense";
    case Codec::kMean:
      return "mean";
    case Codec::kTernary:
      return "ternary";
    case Codec::kSum:
      return "sum";
    case Codec::kSparse:
      return "sparse";
    case Codec::kScaledSign:
      return "scaled sign";
    case Codec::kScales:
      return "scales";
    case Codec::kPackedCount:
      return "packed count";
    case Codec::kLevels:
      return "levels";
    case Codec::kRollCall:
      return "roll call";
    case Codec::kValues:
      return "values";
    case Codec::kMeanValues:
      return "mean values";
    case Codec::kSamples:
      return "samples";
    case Codec::kDenseBf16:
      return "dense bf16";
    case Codec::kMeanBf16:
      return "mean bf16";
    case Codec::kAllSigns:
      return "all signs";
  }
  return "unknown";
}

void seal(const FrameHeader& h, std::span<std::byte> header, const Payload& payload) {
  put<std::uint32_t>(header, 0, kFrameMagic);
  put<std::uint16_t>(header, 4, kFrameVersion);
  put<std::uint8_t>(header, 6, static_cast<std::uint8_t>(h.codec));
  put<std::uint8_t>(header, 7, h.poison ? kPoisonFlag : 0);
  put<std::uint32_t>(header, 8, h.bucket);
  put<std::uint16_t>(header, 12, h.rank);
  put<std::uint16_t>(header, 14, h.weight);
  put<std::uint64_t>(header, 16, h.step);
  put<std::uint64_t>(header, 24, h.n_coords);
  put<std::uint64_t>(header, 32, payload.size());
  put<std::uint64_t>(header, 40, h.scalars);
  put<std::uint32_t>(header, 48, h.poison ? h.poison->tensor : 0);
  put<std::uint32_t>(header, 52, h.poison ? static_cast<std::uint32_t>(h.poison->rank) : 0);
  put<std::uint64_t>(header, kChecksumAt, checksum(header, payload));
}

std::optional<Poison> open(std::span<const std::byte> header, const Payload& payload,
                           const FrameHeader& expected, const std::string& where) {
  const int from = expected.rank;
  const auto must_be = [&](std::string_view field, std::uint64_t got, std::uint64_t want) {
    if (got != want) refuse(where, from, field, got, want);
  };
  // is it a frame of ours, and did it arrive whole?
  must_be("magic", get<std::uint32_t>(header, 0), kFrameMagic);
  must_be("version", get<std::uint16_t>(header, 4), kFrameVersion);
  must_be("checksum", get<std::uint64_t>(header, kChecksumAt), checksum(header, payload));
  // does the sender do the same thing as we do?
  must_be("codec", get<std::uint8_t>(header, 6), static_cast<std::uint8_t>(expected.codec));
  must_be("step", get<std::uint64_t>(header, 16), expected.step);
  must_be("bucket", get<std::uint32_t>(header, 8), expected.bucket);
  must_be("sender rank", get<std::uint16_t>(header, 12), expected.rank);
  must_be("vote weight", get<std::uint16_t>(header, 14), expected.weight);
  must_be("coordinates", get<std::uint64_t>(header, 24), expected.n_coords);
  must_be("payload bytes", get<std::uint64_t>(header, 32), payload.size());
  must_be("step scalars (lr, betas, weight decay) with digest", get<std::uint64_t>(header, 40),
          expected.scalars);

  const auto flags = get<std::uint8_t>(header, 7);
  if ((flags & ~kPoisonFlag) != 0) refuse(where, from, "flags", flags, kPoisonFlag);
  const auto tensor = get<std::uint32_t>(header, 48);
  const auto rank = get<std::uint32_t>(header, 52);
  if ((flags & kPoisonFlag) != 0) return Poison{static_cast<int>(rank), tensor};
  must_be("tensor of a poison that it does not have", tensor, 0);
  must_be("rank of a poison that it does not have", rank, 0);
  return std::nullopt;
}

std::size_t claimed_payload(std::span<const std::byte> header, std::size_t most, int from,
                            const std::string& where) {
  const auto magic = get<std::uint32_t>(header, 0);
  if (magic != kFrameMagic) refuse(where, from, "magic", magic, kFrameMagic);
  const auto version = get<std::uint16_t>(header, 4);
  if (version != kFrameVersion) refuse(where, from, "version", version, kFrameVersion);
  const auto size = get<std::uint64_t>(header, 32);
  if (size > most) {
    throw CommError(concat(where, ": the frame from rank ", from, " claims ", size,
                           " bytes of payload, more than the ", most, " that are possible"));
  }
  return static_cast<std::size_t>(size);
}

}  // namespace pride
