// p-bit levels (up), the roll call of the direct form, and values whose mean the ranks take. Layout
// and examples: docs/wire_format.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codecs/payload_check.h"
#include "kernels/levels.h"
#include "pride/bucket.h"

namespace pride {

// Frame of levels (up): absent bits of the pieces, then the lines of the shard's words.
struct LevelFrame {
  LevelFrame(const Shard& shard, int bits);
  kernels::LevelShape shape;
  std::size_t absent_words;
  std::size_t absent_at, lines_at;  // from the start of the frame
  std::size_t bytes;                // header included
};

// Frame of who takes part in a bucket, from every rank to every other: the absent bits of the
// pieces of all shards, one after the other.
struct RollCallFrame {
  explicit RollCallFrame(const Bucket& bucket);
  std::vector<std::size_t> first_piece;  // by shard: the bit of its first piece
  std::size_t n_pieces, absent_words, absent_at;
  std::size_t bytes;
};

// How values travel whose mean the ranks take.
struct ValueFormat {
  enum class Kind { kFloat32, kBFloat16, kLevels };
  Kind kind = Kind::kFloat32;
  int bits = 32;  // of a value; for kLevels 2 to 8, and a float32 for each 64 values
};

// Frame of n values, up and down. n is a multiple of 64.
struct ValueFrame {
  ValueFrame(std::size_t n, ValueFormat format);
  ValueFormat format;
  std::size_t n;
  std::size_t scales_at, values_at;  // scales: kLevels only
  std::size_t bytes;
};

// Values into a frame, and back. What comes back is what every rank has.
// REQUIRES: values.size() == at.n, finite.
void write_values(std::span<const float> values, const ValueFrame& at, std::span<std::byte> frame);
void read_values(std::span<const std::byte> frame, const ValueFrame& at, std::span<float> values);

// Index of the first value that is not finite; at.n if none is. Of levels, the first that share a
// scale with which the largest level would not be finite.
std::size_t first_beyond_range(std::span<const std::byte> frame, const ValueFrame& at);

// Check what came, reading only, and throw a CommError that names the sender: bits where no piece
// is, codes of an absent piece; scales that are none, values that are not finite. A code that no
// level has is for the vote to find (kernels::vote_levels), which reads all of them anyway;
// check_codes then says whose it is.
void check_levels(const ReceivedFrame& f, int bits);
void check_codes(const ReceivedFrame& f, int bits);
void check_roll_call(const ReceivedFrame& f, const Bucket& bucket);
void check_values(const ReceivedFrame& f, const ValueFrame& at);

}  // namespace pride
