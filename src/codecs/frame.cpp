// Writing and checking frame headers, and the common parts of payloads.
// SPDX-License-Identifier: Apache-2.0
#include "codecs/frame.h"

#include <algorithm>
#include <bit>

#include "pride/digest.h"

namespace pride {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

constexpr std::size_t kChecksumAt = 56;
constexpr std::uint8_t kNonFiniteFlag = 1;

template <typename T>
void put(std::span<std::byte> out, std::size_t at, T value) {
  std::ranges::copy(std::as_bytes(std::span(&value, 1)), out.subspan(at).begin());
}

template <typename T>
T get(std::span<const std::byte> in, std::size_t at) {
  T value;
  std::ranges::copy(in.subspan(at, sizeof(T)),
                    std::as_writable_bytes(std::span(&value, 1)).begin());
  return value;
}

// Hashes the header up to the checksum, the payload's head and its body; each seeds the next.
std::uint64_t checksum(const Frame& frame) {
  const std::uint64_t header = hash_bytes(frame.head.first(kChecksumAt));
  const std::uint64_t first = hash_bytes(frame.head.subspan(kHeaderBytes), header);
  return frame.body.empty() ? first : hash_bytes(frame.body, first);
}

[[noreturn]] void refuse(const std::string& where, int from, std::string_view field,
                         std::uint64_t got, std::uint64_t expected) {
  throw CommError(concat(where, ": the frame from rank ", from, " has ", field, " ", got,
                         ", this rank expects ", expected));
}

void check_version(const std::string& where, int from, std::span<const std::byte> header) {
  const auto version = get<std::uint16_t>(header, 4);
  if (version == kFrameVersion) return;
  throw CommError(concat(where, ": the frame from rank ", from, " has version ", version,
                         ", this rank expects ", kFrameVersion,
                         ": run the same version of pride on all ranks; each version decides "
                         "zeros and ties with other bits"));
}

}  // namespace

void seal(const FrameHeader& h, std::span<std::byte> head, std::span<const std::byte> body) {
  const Frame frame{head, body};
  put<std::uint32_t>(head, 0, kFrameMagic);
  put<std::uint16_t>(head, 4, kFrameVersion);
  put<std::uint8_t>(head, 6, static_cast<std::uint8_t>(h.codec));
  put<std::uint8_t>(head, 7, h.non_finite ? kNonFiniteFlag : 0);
  put<std::uint32_t>(head, 8, h.bucket);
  put<std::uint16_t>(head, 12, h.rank);
  put<std::uint16_t>(head, 14, h.weight);
  put<std::uint64_t>(head, 16, h.step);
  put<std::uint64_t>(head, 24, h.n_coords);
  put<std::uint64_t>(head, 32, frame.payload_bytes());
  put<std::uint64_t>(head, 40, h.scalars);
  put<std::uint32_t>(head, 48, h.non_finite ? h.non_finite->tensor : 0);
  put<std::uint32_t>(head, 52, h.non_finite ? static_cast<std::uint32_t>(h.non_finite->rank) : 0);
  put<std::uint64_t>(head, kChecksumAt, checksum(frame));
}

std::optional<NonFinite> open(const Frame& frame, const FrameHeader& expected,
                              const std::string& where) {
  const auto header = frame.head.first(kHeaderBytes);
  const int from = expected.rank;
  const auto must_be = [&](std::string_view field, std::uint64_t got, std::uint64_t want) {
    if (got != want) refuse(where, from, field, got, want);
  };
  // integrity: is it an undamaged frame of this version?
  must_be("magic", get<std::uint32_t>(header, 0), kFrameMagic);
  check_version(where, from, header);
  must_be("checksum", get<std::uint64_t>(header, kChecksumAt), checksum(frame));
  // agreement: the sender's step, bucket and settings against this rank's
  must_be("codec", get<std::uint8_t>(header, 6), static_cast<std::uint8_t>(expected.codec));
  must_be("step", get<std::uint64_t>(header, 16), expected.step);
  must_be("bucket", get<std::uint32_t>(header, 8), expected.bucket);
  must_be("sender rank", get<std::uint16_t>(header, 12), expected.rank);
  must_be("vote weight", get<std::uint16_t>(header, 14), expected.weight);
  must_be("coordinates", get<std::uint64_t>(header, 24), expected.n_coords);
  must_be("payload bytes", get<std::uint64_t>(header, 32), frame.payload_bytes());
  must_be("step scalars (lr, betas, weight decay, frozen tensors) with digest",
          get<std::uint64_t>(header, 40), expected.scalars);

  const auto flags = get<std::uint8_t>(header, 7);
  if ((flags & ~kNonFiniteFlag) != 0) refuse(where, from, "flags", flags, kNonFiniteFlag);
  const auto tensor = get<std::uint32_t>(header, 48);
  const auto rank = get<std::uint32_t>(header, 52);
  if ((flags & kNonFiniteFlag) != 0) return NonFinite{static_cast<int>(rank), tensor};
  must_be("no non-finite flag, but tensor", tensor, 0);
  must_be("no non-finite flag, but rank", rank, 0);
  return std::nullopt;
}

std::size_t claimed_payload(std::span<const std::byte> header, std::size_t most, int from,
                            const std::string& where) {
  const auto magic = get<std::uint32_t>(header, 0);
  if (magic != kFrameMagic) refuse(where, from, "magic", magic, kFrameMagic);
  check_version(where, from, header);
  const auto size = get<std::uint64_t>(header, 32);
  if (size > most) {
    throw CommError(concat(where, ": the frame from rank ", from, " claims ", size,
                           " bytes of payload, the maximum is ", most));
  }
  return static_cast<std::size_t>(size);
}

FrameKind unused_bits_frames(Codec codec, std::string_view name, std::size_t width) {
  return {.codec = codec, .name = name, .width = width, .bytes = [](const Shard& shard) {
            return kHeaderBytes + 8 * words_for(shard.pieces.size());
          }};
}

void check_payload(const FrameKind& kind, const ReceivedFrame& f, bool result) {
  const std::size_t n = f.shard.pieces.size();
  if (kind.unused_bits) {
    const auto unused = unused_bits(f.frame.head.data(), f.shard);
    if (bits_beyond(unused, n)) f.refuse("has unused bits set after its ", n, " pieces");
    for (std::size_t k = 0; k < n && result && !f.unused_here.empty(); ++k) {
      const std::size_t tensor = f.shard.pieces[k].tensor;
      if (!bit_at(unused, k) || f.unused_here[tensor] != 0) continue;
      f.refuse("marks tensor ", tensor, " as unused on all ranks; this rank uses it");
    }
  }
  if (kind.check) kind.check(f);
}

bool bits_beyond(std::span<const std::uint64_t> words, std::size_t n) {
  return n % 64 != 0 && words.back() >> (n % 64) != 0;
}

bool padding_is_zero(std::span<const std::byte> part) {
  const std::byte* end = part.data() + part.size();
  return std::all_of(end, end + (8 - part.size() % 8) % 8,
                     [](std::byte b) { return b == std::byte{0}; });
}

void check_users(const ReceivedFrame& f, std::span<const std::uint16_t> users, int votes) {
  if (!padding_is_zero(std::as_bytes(users))) {
    f.refuse("has nonzero padding after the counts of its ", users.size(), " pieces");
  }
  for (std::size_t k = 0; k < users.size(); ++k) {
    const std::size_t tensor = f.shard.pieces[k].tensor;
    const bool known = !f.unused_here.empty(), here = known && f.unused_here[tensor] == 0;
    const int least = here ? f.weight_here : 0;
    const int most = known && !here ? votes - f.weight_here : votes;
    if (users[k] >= least && users[k] <= most) continue;
    f.refuse("counts ", users[k], " of ", votes, " ranks as users of tensor ", tensor,
             !known || users[k] > votes ? ""
             : here                     ? ", which this rank uses"
                                        : ", which this rank does not use");
  }
}

void mark_unused_by_all(std::span<const Frame> frames, const Shard& shard,
                        std::span<std::uint64_t> unused) {
  std::ranges::fill(unused, ~std::uint64_t{0});
  for (const Frame& frame : frames) {
    const auto theirs = unused_bits(frame.head.data(), shard);
    for (std::size_t w = 0; w < unused.size(); ++w) unused[w] &= theirs[w];
  }
}

void count_users(const Shard& shard, std::span<const Frame> frames,
                 std::span<std::uint16_t> users) {
  for (std::size_t k = 0; k < users.size(); ++k) {
    users[k] = static_cast<std::uint16_t>(std::ranges::count_if(frames, [&](const Frame& frame) {
      return !bit_at(unused_bits(frame.head.data(), shard), k);
    }));
  }
}

std::vector<Run> runs_of(const Shard& shard, std::span<const Frame> frames) {
  std::vector<Run> runs;
  for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
    const Piece& piece = shard.pieces[k];
    std::vector<std::size_t> users;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      if (!bit_at(unused_bits(frames[i].head.data(), shard), k)) users.push_back(i);
    }
    const bool goes_on = k > 0 && shard.pieces[k - 1].to_whole == piece.to_whole;
    if (goes_on && runs.back().frames == users) {
      runs.back().n_words += piece.n_words();
    } else {
      runs.push_back(
          {piece.first_word, piece.n_words(), piece.in_whole(piece.begin), std::move(users)});
    }
  }
  return runs;
}

}  // namespace pride
