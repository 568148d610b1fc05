// Payload checks: what a frame says must make sense before anybody acts on it. The checksum shows
// that it arrived as it was sent, not that the sender was right.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "pride/bucket.h"

namespace pride {

// A frame whose header is good and whose size is that of its codec for the shard.
struct ReceivedFrame {
  std::span<const std::byte> frame;  // header included
  const Shard& shard;                // what it is about
  int from;                          // the sender
  const std::string& where;          // begins the error text
};

// All of these read only, look at a few words a piece, and throw a CommError that names the sender.
// `absent_here`: by tensor, 1 if it has no gradient on this rank; an owner must not forget us.

// Up: bits where no piece or coordinate is; signs in a piece that is absent.
void check_signs(const ReceivedFrame& f);

// Down: the same, with the tensors that nobody is said to have.
void check_vote(const ReceivedFrame& f, bool ternary, std::span<const char> absent_here);

// The absent bits that begin a payload, up and down.
void check_absent_bits(const ReceivedFrame& f);
void check_nobody_bits(const ReceivedFrame& f, std::span<const char> absent_here);

// The numbers of present ranks that begin a payload of counts or sums, uint16 for each piece.
// REQUIRES: none is above `world`.
void check_present(const ReceivedFrame& f, int world, std::span<const char> absent_here);

}  // namespace pride
