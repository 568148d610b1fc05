// SPDX-License-Identifier: Apache-2.0
#include "codecs/levels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codecs/payload.h"
#include "kernels/ternary.h"
#include "pride/bf16.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }
constexpr std::size_t kScaled = 64;  // values that share a scale

template <typename... What>
[[noreturn]] void refuse(const ReceivedFrame& f, const What&... what) {
  throw CommError(concat(f.where, ": the frame from rank ", f.from, " ", what...));
}

// What one word of codes holds: some bit set, all bits of some code set.
struct WordOfCodes {
  std::uint64_t any = 0, all = ~std::uint64_t{0};
};

WordOfCodes look_at(std::span<const std::uint64_t> lines, kernels::LevelShape shape,
                    std::size_t word) {
  WordOfCodes out;
  for (int b = 0; b < shape.bits; ++b) {
    const std::uint64_t line =
        lines[shape.at(word) + static_cast<std::size_t>(b) * shape.width(word)];
    out.any |= line;
    out.all &= line;
  }
  return out;
}

kernels::LevelShape shape_of(const ValueFrame& at) { return {at.n / 64, at.format.bits}; }

// A run of words at a time: packing and unpacking are fastest so.
constexpr std::size_t kRun = kernels::kRunWords;

// 64 values as levels; returns their scale.
float quantise_block(std::span<const float> block, int largest, std::span<std::int8_t> q) {
  // below the floor the reciprocal might not be finite
  const float most = kernels::max_abs(block);
  const float step = most < kernels::kZeroFloor ? 0.0f : most / static_cast<float>(largest);
  kernels::quantise(block, step == 0 ? 0.0f : 1.0f / step, largest, q);
  return step;
}

void write_scaled(std::span<const float> values, const ValueFrame& at, std::span<std::byte> frame) {
  const auto scales = values_at<float>(frame, at.scales_at, at.n / kScaled);
  const auto lines = words_at(frame, at.values_at, shape_of(at).size());
  const int largest = kernels::largest_level(at.format.bits);
  std::array<std::int8_t, kRun * kScaled> q;
  for (std::size_t first = 0; first < scales.size(); first += kRun) {
    const std::size_t n = std::min(kRun, scales.size() - first);
    for (std::size_t k = 0; k < n; ++k) {
      scales[first + k] = quantise_block(values.subspan(kScaled * (first + k), kScaled), largest,
                                         std::span(q).subspan(kScaled * k, kScaled));
    }
    kernels::pack_levels(std::span(q).first(kScaled * n), shape_of(at), first, lines);
  }
}

void read_scaled(std::span<const std::byte> frame, const ValueFrame& at, std::span<float> values) {
  const auto scales = values_at<float>(frame, at.scales_at, at.n / kScaled);
  const auto lines = words_at(frame, at.values_at, shape_of(at).size());
  std::array<std::int8_t, kRun * kScaled> q;
  for (std::size_t first = 0; first < scales.size(); first += kRun) {
    const std::size_t n = std::min(kRun, scales.size() - first);
    kernels::unpack_levels(lines, shape_of(at), first, std::span(q).first(kScaled * n));
    for (std::size_t k = 0; k < n; ++k) {
      kernels::levels_to_floats(std::span(q).subspan(kScaled * k, kScaled), scales[first + k],
                                values.subspan(kScaled * (first + k), kScaled));
    }
  }
}

}  // namespace

LevelFrame::LevelFrame(const Shard& shard, int bits)
    : shape{shard.n_words(), bits},
      absent_words(words_for(shard.pieces.size())),
      absent_at(kHeaderBytes),
      lines_at(absent_at + 8 * absent_words),
      bytes(lines_at + 8 * shape.size()) {}

RollCallFrame::RollCallFrame(const Bucket& bucket) : n_pieces(0), absent_at(kHeaderBytes) {
  for (const Shard& shard : bucket.shards) {
    first_piece.push_back(n_pieces);
    n_pieces += shard.pieces.size();
  }
  absent_words = words_for(n_pieces);
  bytes = absent_at + 8 * absent_words;
}

ValueFrame::ValueFrame(std::size_t count, ValueFormat how)
    : format(how), n(count), scales_at(kHeaderBytes), values_at(kHeaderBytes), bytes(0) {
  // a whole number of words for any multiple of 64 values
  if (format.kind == ValueFormat::Kind::kLevels) {
    values_at = scales_at + 8 * ((n / kScaled + 1) / 2);
  }
  bytes = values_at + n / 8 * static_cast<std::size_t>(format.bits);
}

void write_values(std::span<const float> values, const ValueFrame& at, std::span<std::byte> frame) {
  std::ranges::fill(frame.subspan(kHeaderBytes), std::byte{0});
  switch (at.format.kind) {
    case ValueFormat::Kind::kFloat32:
      std::ranges::copy(values, values_at<float>(frame, at.values_at, at.n).begin());
      break;
    case ValueFormat::Kind::kBFloat16:
      to_bf16(values, values_at<BFloat16>(frame, at.values_at, at.n));
      break;
    case ValueFormat::Kind::kLevels:
      write_scaled(values, at, frame);
  }
}

void read_values(std::span<const std::byte> frame, const ValueFrame& at, std::span<float> values) {
  switch (at.format.kind) {
    case ValueFormat::Kind::kFloat32:
      std::ranges::copy(values_at<float>(frame, at.values_at, at.n), values.begin());
      break;
    case ValueFormat::Kind::kBFloat16:
      to_float(values_at<BFloat16>(frame, at.values_at, at.n), values);
      break;
    case ValueFormat::Kind::kLevels:
      read_scaled(frame, at, values);
  }
}

void check_levels(const ReceivedFrame& f, int bits) {
  const LevelFrame at(f.shard, bits);
  check_absent_bits(f);
  const auto absent = words_at(f.frame, at.absent_at, at.absent_words);
  const auto lines = words_at(f.frame, at.lines_at, at.shape.size());
  std::size_t word = 0;  // of the shard, at the end of the piece
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& piece = f.shard.pieces[k];
    const std::size_t first = word;
    word += piece.n_words();
    if (piece.n() % 64 != 0) {
      const std::uint64_t used = (std::uint64_t{1} << (piece.n() % 64)) - 1;
      if ((look_at(lines, at.shape, word - 1).any & ~used) != 0) {
        refuse(f, "has levels beyond the end of tensor ", piece.tensor);
      }
    }
    if (!bit_at(absent, k)) continue;
    for (std::size_t w = first; w < word; ++w) {
      if (look_at(lines, at.shape, w).any == 0) continue;
      refuse(f, "has levels of tensor ", piece.tensor, ", which it says is absent");
    }
  }
}

void check_codes(const ReceivedFrame& f, int bits) {
  const LevelFrame at(f.shard, bits);
  const auto lines = words_at(f.frame, at.lines_at, at.shape.size());
  std::size_t word = 0;
  for (const Piece& piece : f.shard.pieces) {
    for (std::size_t w = 0; w < piece.n_words(); ++w, ++word) {
      if (look_at(lines, at.shape, word).all == 0) continue;
      refuse(f, "has a code that no level has in tensor ", piece.tensor);
    }
  }
}

void check_roll_call(const ReceivedFrame& f, const Bucket& bucket) {
  const RollCallFrame at(bucket);
  const auto absent = words_at(f.frame, at.absent_at, at.absent_words);
  if (at.n_pieces % 64 != 0 && absent.back() >> (at.n_pieces % 64) != 0) {
    refuse(f, "has absent bits beyond the ", at.n_pieces, " pieces of the bucket");
  }
}

std::size_t first_beyond_range(std::span<const std::byte> frame, const ValueFrame& at) {
  std::size_t bad = kernels::kAllFinite;
  if (at.format.kind == ValueFormat::Kind::kFloat32) {
    bad = kernels::first_non_finite(values_at<float>(frame, at.values_at, at.n));
  } else if (at.format.kind == ValueFormat::Kind::kBFloat16) {
    std::vector<float> values(at.n);
    read_values(frame, at, values);
    bad = kernels::first_non_finite(values);
  } else {
    const auto largest = static_cast<float>(kernels::largest_level(at.format.bits));
    const auto scales = values_at<float>(frame, at.scales_at, at.n / kScaled);
    const auto found =
        std::ranges::find_if(scales, [&](float scale) { return !std::isfinite(scale * largest); });
    if (found != scales.end()) bad = kScaled * static_cast<std::size_t>(found - scales.begin());
  }
  return bad == kernels::kAllFinite ? at.n : bad;
}

void check_values(const ReceivedFrame& f, const ValueFrame& at) {
  if (at.format.kind == ValueFormat::Kind::kLevels) {
    const auto scales = values_at<float>(f.frame, at.scales_at, at.n / kScaled);
    for (const float scale : scales) {
      if (!std::isfinite(scale) || std::signbit(scale)) refuse(f, "has ", scale, " as a scale");
    }
    const std::size_t end = at.scales_at + 4 * scales.size();
    const auto padding = f.frame.subspan(end, at.values_at - end);
    if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; })) {
      refuse(f, "has bits set behind its scales");
    }
    const auto lines = words_at(f.frame, at.values_at, shape_of(at).size());
    for (std::size_t w = 0; w < at.n / 64; ++w) {
      if (look_at(lines, shape_of(at), w).all != 0) refuse(f, "has a code that no level has");
    }
  }
  const std::size_t bad = first_beyond_range(f.frame, at);
  if (bad >= at.n) return;
  if (at.format.kind == ValueFormat::Kind::kLevels) {
    const float scale = values_at<float>(f.frame, at.scales_at, at.n / kScaled)[bad / kScaled];
    refuse(f, "has ", scale, " as a scale, too large for the largest level, at value ", bad);
  }
  std::vector<float> values(at.n);
  read_values(f.frame, at, values);
  refuse(f, "has ", values[bad], " as value ", bad);
}

}  // namespace pride
