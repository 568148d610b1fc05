// SPDX-License-Identifier: Apache-2.0
#include "codecs/levels.h"

#include <algorithm>
#include <cmath>

namespace pride {
namespace {

constexpr std::size_t kScaled = 64;  // values that share a scale

Values values_of(const Floats& x) {
  if (!x.halved()) return Values::of(x.span());
  return {x.upper, x.n, DType::kBFloat16};
}

float value_of(BFloat16 scale) {
  float value = 0;
  to_float({&scale, 1}, {&value, 1});
  return value;
}

// For each of the 64 codes of a word: whether any of its bits is set, and whether all are.
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

void check_levels(const ReceivedFrame& f, int bits) {
  const LevelView view(f.frame.head.data(), f.shard, bits);
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& piece = f.shard.pieces[k];
    const std::size_t end = piece.first_word + piece.n_words();
    const std::uint64_t last = look_at(view.lines, view.shape, end - 1).any;
    if (bits_beyond({&last, 1}, piece.n())) {
      f.refuse("has levels beyond the end of tensor ", piece.tensor);
    }
    for (std::size_t w = piece.first_word; bit_at(view.unused, k) && w < end; ++w) {
      if (look_at(view.lines, view.shape, w).any == 0) continue;
      f.refuse("has levels of tensor ", piece.tensor, ", which it marks as unused");
    }
  }
}

// The scales and codes of values in levels.
void check_scales(const ReceivedFrame& f, const ValueView<const std::byte>& view) {
  if (view.scales.empty()) return;
  const auto largest = static_cast<float>(kernels::largest_level(view.shape.bits));
  for (std::size_t k = 0; k < view.scales.size(); ++k) {
    const float scale = value_of(view.scales[k]);
    if (!std::isfinite(scale) || std::signbit(scale)) f.refuse("has ", scale, " as a scale");
    if (!std::isfinite(scale * largest)) {
      f.refuse("has ", scale, " as a scale, too large for the largest level, at value ",
               kScaled * k);
    }
  }
  if (!padding_is_zero(std::as_bytes(view.scales)))
    f.refuse("has nonzero padding after its scales");
  for (std::size_t w = 0; w < view.scales.size(); ++w) {
    if (look_at(view.lines, view.shape, w).all != 0) f.refuse("has an invalid code (all bits set)");
  }
}

// The codes of word w differ from level 0 in these bits.
std::uint64_t nonzero_levels(const ValueView<const std::byte>& view, std::size_t w) {
  std::uint64_t bits = 0;
  for (int b = 0; b < view.shape.bits; ++b) {
    const std::uint64_t line =
        view.lines[view.shape.at(w) + static_cast<std::size_t>(b) * view.shape.width(w)];
    bits |= b + 1 < view.shape.bits ? ~line : line;  // the code of 0 is 2^(bits - 1) - 1
  }
  return bits;
}

void check_gradients(const ReceivedFrame& f, ValueFormat format) {
  const ValueView view(f.frame.head.data(), f.shard.size(), format, f.shard.pieces.size());
  check_scales(f, view);
  for (std::size_t k = 0; k < f.shard.pieces.size(); ++k) {
    const Piece& piece = f.shard.pieces[k];
    const std::size_t end = piece.first_word + piece.n_words();
    if (bit_at(view.unused, k)) {  // all bits are 0
      for (std::size_t w = piece.first_word; w < end; ++w) {
        if (view.scales[w] == BFloat16{} && look_at(view.lines, view.shape, w).any == 0) continue;
        f.refuse("has levels of tensor ", piece.tensor, ", which it marks as unused");
      }
      continue;
    }
    const std::uint64_t last = nonzero_levels(view, end - 1);
    if (bits_beyond({&last, 1}, piece.n())) {
      f.refuse("has levels beyond the end of tensor ", piece.tensor);
    }
  }
}

void check_values(const ReceivedFrame& f, ValueFormat format) {
  const std::size_t n = f.shard.size();
  const ValueView view(f.frame.head.data(), n, format);
  check_scales(f, view);
  std::vector<float> room(view.numbers.halved() ? n : 0);
  const auto values = view.numbers.read(room);
  const std::size_t bad = kernels::first_non_finite(values);
  if (bad != kernels::kAllFinite) f.refuse("has ", values[bad], " as value ", bad);
}

}  // namespace

FrameKind level_frames(int bits) {
  return {.codec = Codec::kLevels,
          .name = "levels",
          .bytes = [=](const Shard& s) { return LevelView<std::byte>(nullptr, s, bits).bytes; },
          .check = [=](const ReceivedFrame& f) { check_levels(f, bits); }};
}

void check_codes(const ReceivedFrame& f, int bits) {
  const LevelView view(f.frame.head.data(), f.shard, bits);
  for (const Piece& piece : f.shard.pieces) {
    for (std::size_t w = piece.first_word; w < piece.first_word + piece.n_words(); ++w) {
      if (look_at(view.lines, view.shape, w).all == 0) continue;
      f.refuse("has an invalid code (all bits set) in tensor ", piece.tensor);
    }
  }
}

FrameKind value_frames(Codec codec, ValueFormat format) {
  return {.codec = codec,
          .name = codec == Codec::kValues ? "values" : "mean values",
          .unused_bits = false,
          .bytes =
              [=](const Shard& s) { return ValueView<std::byte>(nullptr, s.size(), format).bytes; },
          .check = [=](const ReceivedFrame& f) { check_values(f, format); }};
}

FrameKind gradient_frames(Codec codec, ValueFormat format) {
  return {.codec = codec,
          .name = codec == Codec::kGradientLevels ? "gradient levels" : "mean levels",
          .bytes =
              [=](const Shard& s) {
                return ValueView<std::byte>(nullptr, s.size(), format, s.pieces.size()).bytes;
              },
          .check = [=](const ReceivedFrame& f) { check_gradients(f, format); }};
}

void write_values(Space& space, const Values& values, const ValueView<std::byte>& frame,
                  std::size_t first, FaultSlot fault) {
  if (frame.scales.empty()) {
    const Floats to = frame.numbers.subspan(first, values.n);
    space.run(kernels::Copy{std::span(static_cast<const float*>(values.data), values.n), to});
    return space.run(kernels::CheckFinite{values_of(to), fault});
  }
  const std::size_t word = first / kScaled, n = words_for(values.n);
  space.run(kernels::WriteValues{
      values,
      frame.scales.subspan(word, n),
      {.shape = frame.shape, .first_word = word, .n_words = n, .words = frame.lines},
      fault});
}

void read_values(Space& space, const ValueView<const std::byte>& frame, std::size_t first,
                 std::span<float> values) {
  if (frame.scales.empty()) {
    return space.run(kernels::Copy{frame.numbers.subspan(first, values.size()), values});
  }
  space.run(kernels::ReadValues{frame.scales.subspan(first / kScaled, values.size() / kScaled),
                                frame.lines, frame.shape, first / kScaled, values});
}

std::size_t write_values(std::span<const float> values, ValueFormat format,
                         const ValueView<std::byte>& frame, std::size_t first) {
  const auto faulty = [&](std::size_t at, std::size_t n) {
    std::uint32_t fault = Wire::kNoTensor;
    write_values(Space::host(), Values::of(values.subspan(at, n)), frame, first + at, {&fault, 0});
    return fault != Wire::kNoTensor;
  };
  if (!faulty(0, values.size())) return values.size();
  const std::size_t step = format.kind == ValueFormat::Kind::kLevels ? kScaled : 1;
  std::size_t at = 0;
  while (!faulty(at, std::min(step, values.size() - at))) at += step;
  return at;
}

std::size_t write_values(std::span<const float> values, ValueFormat format,
                         std::span<std::byte> frame) {
  const ValueView view(frame.data(), values.size(), format);
  clear_padding(view.scales);
  return write_values(values, format, view, 0);
}

void read_values(std::span<const std::byte> frame, ValueFormat format, std::span<float> values) {
  read_values(Space::host(), {frame.data(), values.size(), format}, 0, values);
}

}  // namespace pride
