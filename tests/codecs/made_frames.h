// Frames made by hand, for the tests of codecs: their bytes, the offsets of their parts, and the
// errors of their checks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/bucket.h"
#include "codecs/frame.h"
#include "support/texts.h"

namespace pride::testing {

inline constexpr int kFrom = 7;  // the sender of all of them

using Bytes = std::vector<unsigned>;

// All of these tensors in one shard.
inline Shard shard_of(const std::vector<TensorSpec>& tensors) {
  return make_buckets(Layout(tensors), std::size_t{1} << 30, 1)[0].shards[0];
}

// More ranks than coordinates: the first one's shard is empty.
inline Shard empty_shard() {
  Shard shard = make_buckets(Layout({{"w", {1}}}), 1, 3)[0].shards[0];
  EXPECT_EQ(shard.size(), 0u);
  return shard;
}

inline ByteBuffer zeros(std::size_t n) {
  ByteBuffer bytes;
  bytes.resize(n);
  std::ranges::fill(bytes.span(), std::byte{0});
  return bytes;
}

inline Bytes payload_of(const ByteBuffer& frame) {
  Bytes bytes;
  for (const std::byte b : frame.span().subspan(kHeaderBytes)) {
    bytes.push_back(std::to_integer<unsigned>(b));
  }
  return bytes;
}

// Bytes from the start of the frame to a part of it.
template <typename Part>
std::size_t offset_of(const Part& part, const ByteBuffer& frame) {
  return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(part.data()) -
                                  frame.span().data());
}

// The error of a check of this frame, "" if it is accepted.
template <typename Check>
std::string error_of(const ByteBuffer& frame, const Shard& shard, const Check& check,
                     std::span<const char> unused_here = {}) {
  static const std::string where = "here";
  return texts::error_of<CommError>([&] {
    check(ReceivedFrame{{frame.span()}, shard, kFrom, where, unused_here});
  });
}

// As a frame from a rank to the server of the shard.
inline std::string error_of(const FrameKind& kind, const ByteBuffer& frame, const Shard& shard) {
  EXPECT_EQ(frame.size(), kind.bytes(shard));
  return error_of(frame, shard, [&](const ReceivedFrame& f) { check_payload(kind, f, false); });
}

// As a result, on a rank where these tensors are unused.
inline std::string result_error_of(const FrameKind& kind, const ByteBuffer& frame,
                                   const Shard& shard, std::span<const char> unused_here) {
  EXPECT_EQ(frame.size(), kind.bytes(shard));
  return error_of(
      frame, shard, [&](const ReceivedFrame& f) { check_payload(kind, f, true); }, unused_here);
}

inline void expect_refused(const std::string& error, const std::string& why) {
  EXPECT_EQ(error.rfind("here: the frame from rank 7 ", 0), 0u) << "'" << error << "'";
  EXPECT_NE(error.find(why), std::string::npos) << "'" << error << "' instead of " << why;
}

}  // namespace pride::testing
