// Rows of the kernels of levels.
// SPDX-License-Identifier: Apache-2.0
#include "kernels/levels.h"

#include "bench/kernels/row_parts.h"
#include "kernels/scaled_signs.h"

namespace pride::app {
namespace {

using namespace row_parts;

constexpr float kScale = 0.5f;  // mean magnitude of the arrays

// Encoding of levels of p bits: to nearest with a known scale, with a scale per block, from floats
// alone, and stochastic.
void add_encoding(std::vector<KernelRow>& rows, int p) {
  const AddRow add(rows, "/p" + std::to_string(p));
  const int largest = largest_level(p);
  const float inv = kScale * static_cast<float>(largest);
  const auto lines = bits(static_cast<std::size_t>(p));
  const auto pack = [p](const Block& b, Words out) {
    pack_levels(b.q, {out.size() / static_cast<std::size_t>(p), p}, b.at / 64, out);
    return std::size_t{0};
  };
  add("lion_quantise+pack_levels", by_block([=](const Block& b, Floats g, Floats m, Words out) {
        const std::size_t found = lion_quantise(g, kBlend, inv, largest, m, b.q);
        return found + pack(b, out);
      }),
      kIn, kInOut, lines);
  add("lion_blend+sum_abs+quantise+pack_levels",
      by_block([=](const Block& b, Floats g, Floats m, Words out) {
        const std::size_t found = lion_blend(g, kBlend, m, b.u);
        const auto total = static_cast<float>(sum_abs(b.u));
        quantise(b.u, inv / kScale * static_cast<float>(b.u.size()) / total / 2, largest, b.q);
        return found + pack(b, out);
      }),
      kIn, kInOut, lines);
  add("quantise+pack_levels", by_block([=](const Block& b, Floats u, Words out) {
        quantise(u, inv, largest, b.q);
        return pack(b, out);
      }),
      kIn, lines);
  add("uniforms+quantise+pack_levels", by_block([=](const Block& b, Floats u, Words out) {
        PhiloxKey key = kKey;
        key.first_coord = b.at;
        uniforms(key, b.u);
        quantise(u, inv, largest, b.u, b.q);
        return pack(b, out);
      }),
      kIn, lines);
}

// Clears codes with all bits set, which no level has.
void clear_impossible(Words lines, LevelShape shape) {
  for (std::size_t word = 0; word < shape.n_words; ++word) {
    std::uint64_t impossible = ~std::uint64_t{0};
    const std::size_t first = shape.at(word);
    for (int b = 0; b < shape.bits; ++b) {
      impossible &= lines[first + static_cast<std::size_t>(b) * shape.width(word)];
    }
    lines[first] &= ~impossible;
  }
}

void add_votes_of_bits(std::vector<KernelRow>& rows, int p, std::size_t n) {
  const AddRow add(rows, per_row(n) + "/p" + std::to_string(p));
  const auto n_lines = static_cast<std::size_t>(p);
  const auto levels = sign_rows(n * n_lines);
  const auto firsts = [=](Lines lines) {  // of each rank's lines
    std::vector<const std::uint64_t*> first;
    for (std::size_t i = 0; i < lines.size(); i += n_lines) first.push_back(lines[i]);
    return first;
  };
  const auto possible = [=](KernelArrays& a) {
    for (std::size_t r = 0; r < n; ++r) {
      clear_impossible(a.piece<std::uint64_t>(r * n_lines, n_lines), {a.n_words(), p});
    }
  };
  const auto binary = [=](Lines lines, Words out) {
    return vote_levels({firsts(lines), {out.size(), p}}, kHash, out);
  };
  add("vote_levels", binary, levels, bits()).prepare = possible;
  const auto ternary = [=](Lines lines, Words positive, Words nonzero) {
    return vote_levels_ternary({firsts(lines), {positive.size(), p}}, positive, nonzero);
  };
  add("vote_levels_ternary", ternary, levels, bits(), bits()).prepare = possible;
}

void vote_on_sums(std::span<std::uint32_t> sums, std::size_t n, Words positive) {
  vote_sums({reinterpret_cast<const std::int32_t*>(sums.data()), n}, kHash, positive, {});
}

// Kernels around levels: scales and error feedback.
void add_around_levels(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  add(PRIDE_KERNEL(add), kIn, kInOut);
  add(PRIDE_KERNEL(lion_blend), kIn, kBlend, kInOut, kOut);
  add("blend_only+sum_abs", by_block([](const Block& b, Floats g, Floats m) {
        blend_only(g, kBlend, m, b.u);
        return sum_abs(b.u);
      }),
      kIn, kIn);
  add("quantise+keep_level_error", by_block([](const Block& b, Floats u, Floats e) {
        quantise(u, 7 * kScale, 7, b.q);
        keep_level_error(u, b.q, 1 / (7 * kScale), e);
        return 0;
      }),
      kIn, kOut);
  add("unpack_levels+levels_to_floats/p4", by_block([](const Block& b, Floats x, Words lines) {
        unpack_levels(lines, {lines.size() / 4, 4}, b.at / 64, b.q);
        levels_to_floats(b.q, 0.1f, x);
        return 0;
      }),
      kOut, bits(4));
  const auto n = [](KernelArrays& a) { return a.n(); };
  add("vote_sums", vote_on_sums, Piece<std::uint32_t>{4}, n, bits()).prepare = [](auto& a) {
    for (auto& sum : a.numbers()) sum = sum % 5 - 2;  // with ties
  };
}

}  // namespace

void add_levels(std::vector<KernelRow>& rows) {
  for (const int p : {2, 4, 8}) add_encoding(rows, p);
  add_around_levels(rows);
}

void add_level_votes(std::vector<KernelRow>& rows, std::size_t n) {
  for (const int p : {2, 4, 8}) add_votes_of_bits(rows, p, n);
}

}  // namespace pride::app
