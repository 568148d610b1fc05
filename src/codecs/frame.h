// Frame: the 64-byte header of every message between ranks in an exchange, and the common parts of
// all kinds of frames. Byte layout: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/bucket.h"
#include "base/wire.h"
#include "base/words.h"
#include "pride/error.h"

namespace pride {

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::uint32_t kFrameMagic = 0x31445250;  // "PRD1" in memory order
inline constexpr std::uint16_t kFrameVersion = 3;         // 1 and 2: other bits of zeros and ties
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
  kParticipation = 13,
  // 14 to 16 are unused: 14 and 15 were values whose scales were float32
  kDenseBf16 = 17,
  kMeanBf16 = 18,
  kAllSigns = 19,
  kTurnSigns = 20,
  kTurnVote = 21,
  kGradientLevels = 22,
  kMeanLevels = 23,
  kValues = 24,
  kMeanValues = 25
};

// A frame in flight: the head, and a body that is sent from the caller's memory.
struct Frame {
  std::span<const std::byte> head;  // header included
  std::span<const std::byte> body = {};

  std::size_t payload_bytes() const noexcept { return head.size() - kHeaderBytes + body.size(); }
};

// Fields of the sender's header, or the receiver's expected values.
struct FrameHeader {
  Codec codec = Codec::kSign;
  std::uint32_t bucket = 0;
  std::uint16_t rank = 0;    // the sender
  std::uint16_t weight = 1;  // votes of the sender, or of its node
  std::uint64_t step = 0;
  std::uint64_t n_coords = 0;  // of the shard, padding included
  std::uint64_t scalars = 0;   // digest of the step's scalars
  std::optional<NonFinite> non_finite;
};

// Writes the header with its checksum into the head's first bytes.
void seal(const FrameHeader& h, std::span<std::byte> head, std::span<const std::byte> body = {});

// Checks everything against `expected` (its non_finite is ignored) and returns the sender's
// non-finite flag. `where` begins the error text, e.g. "sign frames of bucket 3". Throws CommError.
std::optional<NonFinite> open(const Frame& frame, const FrameHeader& expected,
                              const std::string& where);

// Payload size from a header, for payloads whose size depends on the sender's data. The header is
// not verified yet: its checksum covers the payload. Throws CommError unless it is a header of this
// version with a payload of at most `most` bytes.
std::size_t claimed_payload(std::span<const std::byte> header, std::size_t most, int from,
                            const std::string& where);

// --- Payloads. -----------------------------------------------------------------------------------

// A received frame. Its header is valid, and it has the size of its kind for the shard.
struct ReceivedFrame {
  Frame frame;
  const Shard& shard;
  int from;                                // the sender
  const std::string& where;                // begins the error text
  std::span<const char> unused_here = {};  // by tensor; empty: this process has no gradients
  int weight_here = 1;                     // votes of this rank
  int most_votes = 0;                      // in the frame; 0: the maximum of its kind

  template <typename... What>
  [[noreturn]] void refuse(const What&... what) const {
    throw CommError(concat(where, ": the frame from rank ", from, " ", what...));
  }
};

// A kind of frame: its codec, sizes and checks, as needed by routes.
struct FrameKind {
  Codec codec = Codec::kSign;
  std::string_view name = {};
  bool unused_bits = true;  // the payload begins with a bit for each piece: unused on the sender,
                            // or in a result on all ranks
  std::size_t width = 0;    // bytes of the body for each coordinate of the shard
  bool sized = true;        // false: `bytes` is the largest head; the header has its size
  std::function<std::size_t(const Shard&)> bytes = {};   // of the head
  std::function<void(const ReceivedFrame&)> check = {};  // beyond the unused bits

  std::size_t body_bytes(const Shard& shard) const { return width * shard.size(); }
  std::size_t all_bytes(const Shard& shard) const { return bytes(shard) + body_bytes(shard); }
};

// Frames of unused bits; with a body if width > 0.
FrameKind unused_bits_frames(Codec codec, std::string_view name, std::size_t width = 0);

// Checks the payload: the unused bits, then the kind's own check. A `result` comes from the shard's
// server and must not mark a tensor as unused that this rank uses. Throws CommError.
void check_payload(const FrameKind& kind, const ReceivedFrame& f, bool result);

// Iterates over the consecutive parts of a payload, at multiples of 8 bytes. With a null frame it
// only counts bytes.
template <typename Byte>
class Parts {
 public:
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  explicit Parts(Byte* frame) : frame_(frame) {}

  template <typename T>
  std::span<Like<T>> take(std::size_t n) {
    auto* part = frame_ == nullptr ? nullptr : reinterpret_cast<Like<T>*>(frame_ + end_);
    end_ += (sizeof(T) * n + 7) / 8 * 8;
    return {part, n};
  }
  std::span<Like<std::uint64_t>> words(std::size_t n) { return take<std::uint64_t>(n); }
  std::size_t end() const noexcept { return end_; }

 private:
  Byte* frame_;
  std::size_t end_ = kHeaderBytes;
};

template <typename Byte>
using Words = std::span<typename Parts<Byte>::template Like<std::uint64_t>>;

inline bool bit_at(std::span<const std::uint64_t> words, std::size_t i) {
  return (words[i / 64] >> (i % 64)) & 1;
}
inline void set_bit(std::span<std::uint64_t> words, std::size_t i) {
  words[i / 64] |= std::uint64_t{1} << (i % 64);
}

// The words of a piece among those of its shard.
template <typename Word>
std::span<Word> words_of(std::span<Word> words, const Piece& piece) {
  return words.empty() ? words : words.subspan(piece.first_word, piece.n_words());
}

// True if a bit is set after the first n bits of these words.
bool bits_beyond(std::span<const std::uint64_t> words, std::size_t n);

// True if the bytes that pad a part to a multiple of 8 are zero.
bool padding_is_zero(std::span<const std::byte> part);

// Zeroes the bytes that padding_is_zero() checks.
template <typename T>
void clear_padding(std::span<T> part) {
  std::byte* end = reinterpret_cast<std::byte*>(part.data() + part.size());
  std::fill_n(end, (8 - part.size_bytes() % 8) % 8, std::byte{0});
}

// The unused bits that begin a payload. REQUIRES: FrameKind::unused_bits.
template <typename Byte>
Words<Byte> unused_bits(Byte* frame, const Shard& shard) {
  return Parts<Byte>(frame).words(words_for(shard.pieces.size()));
}

// Checks the participation counts of the pieces, in votes. A count must be at most `votes`. It must
// include this rank's votes if this rank uses the tensor, and leave room for them if not. Throws
// CommError.
void check_users(const ReceivedFrame& f, std::span<const std::uint16_t> users, int votes);

// Bit k = 1 where piece k is unused in all frames.
void mark_unused_by_all(std::span<const Frame> frames, const Shard& shard,
                        std::span<std::uint64_t> unused);

// Participation: the number of frames that use each piece.
void count_users(const Shard& shard, std::span<const Frame> frames, std::span<std::uint16_t> users);

// A run of words of a shard to which the same frames contribute; their coordinates follow each
// other in the whole model, too.
struct Run {
  std::size_t first_word = 0;  // in the shard
  std::size_t n_words = 0;
  std::uint64_t in_whole = 0;       // its first coordinate in the whole model
  std::vector<std::size_t> frames;  // ascending
};

// Cuts a shard into runs: where the frames' unused bits change, and between tensors that are not
// neighbours in the whole model. Usually there is one run, of all frames and all words.
std::vector<Run> runs_of(const Shard& shard, std::span<const Frame> frames);

}  // namespace pride
