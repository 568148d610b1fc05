// Sparse frames: exact bytes, sizes and their bound, and refusals.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the entries that were written, as a plain list.
#include "codecs/sparse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "codecs/made_frames.h"
#include "pride/random_bits.h"

namespace pride::sparse_test {
namespace {

using testing::offset_of;

using SparseFrame = SparseView<std::byte>;

std::size_t payload_bytes(std::size_t n, std::size_t k) {
  return SparseFrame(nullptr, n, k).bytes - kHeaderBytes;
}

struct Example {
  ByteBuffer frame;
  std::size_t k = 0;
  std::vector<float> dense;
};

// n coordinates, about a given share of them entries.
Example random_example(std::size_t n, double share, std::uint64_t seed) {
  Example e;
  e.dense.resize(n);
  std::vector<std::uint64_t> mask((n + 63) / 64);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t h = mix64(seed, i);
    e.dense[i] = static_cast<float>(h >> 40) + 1;
    if (static_cast<double>(h % 100'000) >= share * 100'000) {
      e.dense[i] = 0;
      continue;
    }
    set_bit(mask, i);
    ++e.k;
  }
  write_sparse(mask, e.dense, e.frame);
  EXPECT_EQ(e.frame.size(), kHeaderBytes + payload_bytes(n, e.k));
  return e;
}

std::string refusal_of(std::span<const std::byte> frame, std::size_t n) {
  static const std::string where = "sparse frames of bucket 2";
  const Shard shard{.begin = 0, .end = n, .pieces = {}};
  std::vector<float> sum(n, 7.0f);
  try {
    add_sparse({{frame}, shard, 3, where}, sum);
  } catch (const CommError& e) {
    EXPECT_EQ(sum, std::vector<float>(n, 7.0f)) << "changed by a frame that was refused";
    return e.what();
  }
  return "";
}

void expect_refused(std::span<const std::byte> frame, std::size_t n, const std::string& why) {
  const std::string text = refusal_of(frame, n);
  EXPECT_NE(text.find("sparse frames of bucket 2: the frame from rank 3 "), std::string::npos)
      << text;
  EXPECT_NE(text.find(why), std::string::npos) << text;
}

// The worked example of docs/wire_format.md: 3 of 256 coordinates. l = floor(log2(256/3)) = 6.
TEST(SparsePayload, HasTheBytesOfTheWireFormat) {
  std::vector<float> values(256);
  std::vector<std::uint64_t> mask(4);
  values[5] = 1;
  values[70] = -2;
  values[200] = 0.5f;
  for (const std::size_t i : {5, 70, 200}) set_bit(mask, i);
  ByteBuffer frame;
  write_sparse(mask, values, frame);
  // low bits: 5, 70 - 64 = 6, 200 - 192 = 8, six bits each; high parts 0, 1, 3: bits 0, 2 and 5
  EXPECT_EQ(testing::payload_of(frame), (testing::Bytes{3,    0,    0,    0,    0, 0, 0, 0,     //
                                                        0x85, 0x81, 0,    0,    0, 0, 0, 0,     //
                                                        0x25, 0,    0,    0,    0, 0, 0, 0,     //
                                                        0,    0,    0x80, 0x3F, 0, 0, 0, 0xC0,  //
                                                        0,    0,    0,    0x3F, 0, 0, 0, 0}));
  const SparseFrame view(frame.span().data(), 256, 3);
  EXPECT_EQ(offset_of(view.low, frame), 64u + 8);
  EXPECT_EQ(offset_of(view.high, frame), 64u + 16);
  EXPECT_EQ(offset_of(view.values, frame), 64u + 24);
}

TEST(SparsePayload, TakesAtMostTheBytesOfAllCoordinates) {
  const FrameKind kind = sparse_frames();
  EXPECT_FALSE(kind.sized);
  EXPECT_FALSE(kind.unused_bits);
  for (const std::size_t n : {1, 63, 64, 65, 1000}) {
    // the count, a bitmap, the values
    EXPECT_EQ(kind.bytes({.begin = 0, .end = n, .pieces = {}}),
              64 + 8 + (n + 63) / 64 * 8 + (n + 1) / 2 * 8);
  }
}

TEST(SparsePayload, GivesBackItsEntries) {
  for (const std::size_t n : {1, 63, 64, 65, 1000, 4096, 100'003}) {
    for (const double share : {0.0, 0.0005, 0.04, 0.3, 0.8, 1.0}) {
      const Example e = random_example(n, share, n);
      std::vector<float> sum(n, 1.0f);
      const Shard shard{.begin = 0, .end = n, .pieces = {}};
      add_sparse({{e.frame.span()}, shard, 0, "test"}, sum);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(sum[i], 1.0f + e.dense[i]) << "n " << n << " share " << share << " at " << i;
      }
    }
  }
}

TEST(SparsePayload, IndicesTakeAtMostTwoBitsAndTheLogarithm) {
  for (const std::size_t n : {1, 2, 63, 64, 65, 127, 500, 1000, 4096}) {
    for (std::size_t k = 0; k <= n; ++k) {
      const SparseShape at(n, k);
      EXPECT_LE(payload_bytes(n, k), payload_bytes(n, n)) << n << ' ' << k;
      EXPECT_LE(payload_bytes(n, k), sparse_bytes_bound(n, k, 1)) << n << ' ' << k;
      const std::size_t index_bits = 64 * (at.low_words + at.high_words);
      EXPECT_LE(index_bits, (n + 63) / 64 * 64);
      if (k == 0 || at.bitmap) continue;
      const double ratio = static_cast<double>(n) / static_cast<double>(k);
      const double most = static_cast<double>(k) * (2 + std::log2(ratio)) + 2 * 63;  // two paddings
      EXPECT_LE(static_cast<double>(index_bits), most) << n << ' ' << k;
    }
  }
}

// For any distribution of the entries over the payloads of a step.
TEST(SparsePayload, SeveralStayUnderTheirCommonBound) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::size_t n = 0, k = 0, bytes = 0;
    const std::size_t n_payloads = 1 + mix64(seed, 0) % 6;
    for (std::size_t p = 0; p < n_payloads; ++p) {
      const std::size_t size = 64 * (1 + mix64(seed, 3 * p + 1) % 100);
      const std::size_t share = mix64(seed, 3 * p + 2) % 1000;
      const std::size_t entries = size * share * share / 1'000'000;
      n += size;
      k += entries;
      bytes += payload_bytes(size, entries);
    }
    EXPECT_LE(bytes, sparse_bytes_bound(n, k, n_payloads)) << "seed " << seed;
  }
}

TEST(SparsePayload, CostsSevenBitsAnIndexAtFourPercent) {
  const SparseShape at(1'000'000, 40'000);
  EXPECT_FALSE(at.bitmap);
  const double bits = 64.0 * static_cast<double>(at.low_words + at.high_words) / 40'000;
  EXPECT_NEAR(bits, 4 + 1 + 25.0 / 16, 0.01);
}

TEST(SparsePayload, RefusesWhatIsMalformed) {
  for (const double share : {0.04, 0.6}) {
    const std::size_t n = 1000;
    const Example good = random_example(n, share, 5);
    const std::span<const std::byte> whole = good.frame.span();
    EXPECT_EQ(SparseShape(n, good.k).bitmap, share > 0.5);
    ASSERT_EQ(refusal_of(whole, n), "");
    expect_refused(whole.first(kHeaderBytes), n, "has 0 bytes of payload");
    expect_refused(whole.first(kHeaderBytes + 7), n, "has 7 bytes of payload");
    expect_refused(whole.first(whole.size() - 8), n, "which take");

    const auto with = [&](const auto& change) {
      ByteBuffer copy;
      copy.resize(whole.size());
      std::copy(whole.begin(), whole.end(), copy.span().begin());
      change(SparseFrame(copy.span().data(), n, good.k));
      return copy;
    };
    const auto huge = with([](const SparseFrame& f) { f.count[0] = ~std::uint64_t{0}; });
    expect_refused(huge.span(), n, "entries of 1000 coordinates");
    const auto missing = with([](const SparseFrame& f) { f.high[0] = 0; });
    expect_refused(missing.span(), n, "indices, but counts");
    const auto nan = with([](const SparseFrame& f) { f.values[1] = std::nanf(""); });
    expect_refused(nan.span(), n, "value of entry 1");
    if (good.k % 2 == 1) {
      auto padded = with([](const SparseFrame&) {});
      padded.span().back() = std::byte{1};
      expect_refused(padded.span(), n, "after its values");
    }
  }
}

// The position of the padding of 4 bytes, independent of the examples above.
TEST(SparsePayload, RefusesBitsBehindAnOddNumberOfValues) {
  ByteBuffer frame;
  write_sparse(std::vector<std::uint64_t>{0b111}, std::vector<float>(64, 1.0f), frame);
  ASSERT_EQ(refusal_of(frame.span(), 64), "");
  frame.span().back() = std::byte{1};
  expect_refused(frame.span(), 64, "after its values");
}

TEST(SparsePayload, RefusesIndicesThatDoNotAscendOrReachTooFar) {
  const std::vector<float> values(256, 1.0f);
  std::vector<std::uint64_t> mask(4);
  for (const std::size_t i : {5, 6}) set_bit(mask, i);
  ByteBuffer frame;
  write_sparse(mask, values, frame);
  const SparseFrame view(frame.span().data(), 256, 2);  // 7 low bits
  view.low[0] = 5 | (5 << 7);
  expect_refused(frame.span(), 256, "is not ascending");
  view.low[0] = 5 | (6 << 7);
  view.high[0] = 1 | (std::uint64_t{1} << 60);
  expect_refused(frame.span(), 256, "of 256 coordinates");
  view.high[0] = 3;
  view.low[0] |= std::uint64_t{1} << 20;
  expect_refused(frame.span(), 256, "after its indices");
}

// A bitmap of 1000 coordinates has 24 bits of padding.
TEST(SparsePayload, RefusesABitmapThatReachesTooFar) {
  Example e = random_example(1000, 0.6, 5);
  const SparseFrame view(e.frame.span().data(), 1000, e.k);
  ASSERT_TRUE(view.bitmap);
  view.high[0] &= view.high[0] - 1;  // one fewer
  set_bit(view.high, 1000);
  expect_refused(e.frame.span(), 1000, "has an index beyond 1000");
}

// Any corrupted bits: an error, or a payload that is right; never a write outside.
TEST(SparsePayload, StandsRandomBits) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Example e = random_example(200, 0.1, seed % 7);
    const auto payload = e.frame.span().subspan(kHeaderBytes);
    const std::uint64_t h = mix64(99, seed);
    payload[h % payload.size()] ^= static_cast<std::byte>(1u << ((h >> 32) % 8));
    refused += refusal_of(e.frame.span(), 200).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);  // most of the flips are in values, which stay finite
}

}  // namespace
}  // namespace pride::sparse_test
