// The sparse payload: exact bytes, sizes and their bound, and what a reader refuses.
// SPDX-License-Identifier: Apache-2.0
// Oracle: the entries that were written, as a plain list.
#include "codecs/sparse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "codecs/payload.h"
#include "pride/error.h"
#include "pride/random_bits.h"
#include "pride/wire.h"

namespace pride {
namespace {

struct Payload {
  ByteBuffer bytes;
  std::vector<float> dense;
};

// n coordinates of which about share are entries.
Payload random_payload(std::size_t n, double share, std::uint64_t seed) {
  Payload p;
  p.dense.resize(n);
  std::vector<std::uint64_t> mask((n + 63) / 64);
  std::size_t k = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t h = mix64(seed, i);
    p.dense[i] = static_cast<float>(h >> 40) + 1;
    if (static_cast<double>(h % 100'000) >= share * 100'000) {
      p.dense[i] = 0;
      continue;
    }
    set_bit(mask, i);
    ++k;
  }
  p.bytes.resize(SparseShape(n, k).bytes);
  write_sparse(mask, p.dense, k, p.bytes.span());
  return p;
}

std::string refusal_of(std::span<const std::byte> payload, std::size_t n) {
  std::vector<float> sum(n, 7.0f);
  try {
    add_sparse(payload, 3, "sparse_gather, bucket 2", sum);
  } catch (const CommError& e) {
    EXPECT_EQ(sum, std::vector<float>(n, 7.0f)) << "changed by a payload that was refused";
    return e.what();
  }
  return "";
}

void expect_refused(std::span<const std::byte> payload, std::size_t n, const std::string& why) {
  const std::string text = refusal_of(payload, n);
  EXPECT_NE(text.find("sparse_gather, bucket 2: the frame from rank 3 "), std::string::npos)
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
  ByteBuffer payload;
  payload.resize(SparseShape(256, 3).bytes);
  write_sparse(mask, values, 3, payload.span());
  // low bits: 5, 70 - 64 = 6, 200 - 192 = 8, six bits each; high parts 0, 1, 3: bits 0, 2 and 5
  const unsigned char expected[] = {3,    0,    0,    0,    0, 0, 0, 0,     //
                                    0x85, 0x81, 0,    0,    0, 0, 0, 0,     //
                                    0x25, 0,    0,    0,    0, 0, 0, 0,     //
                                    0,    0,    0x80, 0x3F, 0, 0, 0, 0xC0,  //
                                    0,    0,    0,    0x3F, 0, 0, 0, 0};
  ASSERT_EQ(payload.size(), sizeof(expected));
  for (std::size_t i = 0; i < sizeof(expected); ++i) {
    EXPECT_EQ(static_cast<unsigned>(payload.span()[i]), expected[i]) << "byte " << i;
  }
}

TEST(SparsePayload, GivesBackItsEntries) {
  for (const std::size_t n : {1, 63, 64, 65, 1000, 4096, 100'003}) {
    for (const double share : {0.0, 0.0005, 0.04, 0.3, 0.8, 1.0}) {
      const Payload p = random_payload(n, share, n);
      std::vector<float> sum(n, 1.0f);
      add_sparse(p.bytes.span(), 0, "test", sum);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(sum[i], 1.0f + p.dense[i]) << "n " << n << " share " << share << " at " << i;
      }
    }
  }
}

TEST(SparsePayload, IndicesTakeAtMostTwoBitsAndTheLogarithm) {
  for (const std::size_t n : {1, 2, 63, 64, 65, 127, 500, 1000, 4096}) {
    for (std::size_t k = 0; k <= n; ++k) {
      const SparseShape at(n, k);
      EXPECT_LE(at.bytes, SparseShape(n, n).bytes) << n << ' ' << k;
      EXPECT_LE(at.bytes, sparse_bytes_bound(n, k, 1)) << n << ' ' << k;
      const std::size_t index_bits = 64 * (at.low_words + at.high_words);
      EXPECT_LE(index_bits, (n + 63) / 64 * 64);
      if (k == 0 || at.bitmap) continue;
      const double ratio = static_cast<double>(n) / static_cast<double>(k);
      const double most = static_cast<double>(k) * (2 + std::log2(ratio)) + 2 * 63;  // two paddings
      EXPECT_LE(static_cast<double>(index_bits), most) << n << ' ' << k;
    }
  }
}

// However the entries are spread over the payloads of a step.
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
      bytes += SparseShape(size, entries).bytes;
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
    const Payload good = random_payload(n, share, 5);
    const std::span<const std::byte> whole = good.bytes.span();
    const auto k = words_at(whole, 0, 1)[0];
    const SparseShape at(n, k);
    EXPECT_EQ(at.bitmap, share > 0.5);
    ASSERT_EQ(refusal_of(whole, n), "");
    expect_refused(whole.first(0), n, "has 0 bytes of payload");
    expect_refused(whole.first(at.bytes - 8), n, "which take");

    const auto with = [&](const auto& change) {
      ByteBuffer copy;
      copy.resize(whole.size());
      std::copy(whole.begin(), whole.end(), copy.span().begin());
      change(copy.span());
      return copy;
    };
    const auto huge = with([](auto b) { words_at(b, 0, 1)[0] = ~std::uint64_t{0}; });
    expect_refused(huge.span(), n, "entries of 1000 coordinates");
    const auto missing = with([&](auto b) { words_at(b, at.high_at, 1)[0] = 0; });
    expect_refused(missing.span(), n, "indices, and says");
    const auto nan =
        with([&](auto b) { reinterpret_cast<float*>(b.data() + at.values_at)[1] = std::nanf(""); });
    expect_refused(nan.span(), n, "value of entry 1");
    if (k % 2 == 1) {
      const auto padded = with([](auto b) { b.back() = std::byte{1}; });
      expect_refused(padded.span(), n, "behind its values");
    }
  }
}

TEST(SparsePayload, RefusesIndicesThatDoNotAscendOrReachTooFar) {
  std::vector<float> values(256, 1.0f);
  std::vector<std::uint64_t> mask(4);
  for (const std::size_t i : {5, 6}) set_bit(mask, i);
  ByteBuffer payload;
  const SparseShape at(256, 2);  // 7 low bits
  payload.resize(at.bytes);
  write_sparse(mask, values, 2, payload.span());
  const auto low = words_at(payload.span(), at.low_at, 1),
             high = words_at(payload.span(), at.high_at, 1);
  low[0] = 5 | (5 << 7);
  expect_refused(payload.span(), 256, "does not ascend");
  low[0] = 5 | (6 << 7);
  high[0] = 1 | (std::uint64_t{1} << 60);
  expect_refused(payload.span(), 256, "of 256 coordinates");
  high[0] = 3;
  low[0] |= std::uint64_t{1} << 20;
  expect_refused(payload.span(), 256, "behind its indices");
}

// Whatever bits arrive: an error, or a payload that is right; never a write outside.
TEST(SparsePayload, StandsRandomBits) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Payload p = random_payload(200, 0.1, seed % 7);
    const std::uint64_t h = mix64(99, seed);
    p.bytes.span()[h % p.bytes.size()] ^= static_cast<std::byte>(1u << ((h >> 32) % 8));
    refused += refusal_of(p.bytes.span(), 200).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);  // most of the flips are in values, which stay finite
}

}  // namespace
}  // namespace pride
