// The rows of `pride bench kernels`: a kernel and its arguments each.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/floats.h"
#include "bench/kernels/add_row.h"
#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/log2.h"
#include "kernels/planes.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"
#include "kernels/sparse.h"
#include "kernels/stochastic_signs.h"
#include "kernels/ternary.h"

namespace pride::app {
namespace {

using namespace kernels;

using Words = std::span<std::uint64_t>;
using Floats = std::span<float>;
using Lines = std::span<const std::uint64_t* const>;

// Decay takes off one unit in the last place: parameters stay in range, and away from denormals,
// however often a step is repeated.
constexpr Step kStep{.decay = 0x1.fffffep-1f, .lr = 3e-4f};
constexpr Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
constexpr HashWords kHash{.key = 1, .first_word = 0};
constexpr PhiloxKey kKey{.seed = 7, .step = 3, .rank = 1};
constexpr Feedback kFeedback{.keep = 0.9f, .take = 1, .rate = 1e-3f};
constexpr AdamScalars kAdam{0.9f, 0.1f, 0.999f, 0.001f, 1e-3f, 1, 1e-8f, kStep.decay};

// What a kernel reads, writes, or both.
constexpr Piece<float> kIn{4}, kOut{4}, kInOut{8};
constexpr Piece<BFloat16> kHalves{2};

double per_bit(std::size_t n) { return static_cast<double>(n) / 8; }
Piece<std::uint64_t> bits(std::size_t n = 1) { return {per_bit(n), n}; }
Pointers<std::uint64_t> sign_rows(std::size_t n) { return {{per_bit(n), n}}; }
Pointers<float> float_rows(std::size_t n) { return {{4 * static_cast<double>(n), n}}; }
std::size_t n_words(const KernelArrays& a) { return a.n_words(); }

std::string per_row(std::size_t n) { return "/" + std::to_string(n); }

auto make_positive(std::size_t i) {
  return [i](KernelArrays& a) {
    for (float& value : a.array(i)) value = std::abs(value);
  };
}

// Several kernels of a method work on one block, which stays in the cache.
constexpr std::size_t kBlock = 4096;  // coordinates
struct Block {
  std::size_t at;            // first coordinate
  std::span<float> u;        // room of the block's own
  std::span<std::int8_t> q;  // the same for levels
};

Floats cut(Floats x, const Block& b) { return x.subspan(b.at, b.u.size()); }
Words cut(Words lines, const Block&) { return lines; }

// Calls body(block, its part of the floats, all bits) for each block. Adds up what it returns.
template <typename Body>
auto by_block(Body body) {
  return [body](Floats first, auto... more) {
    alignas(64) std::array<float, kBlock> u;
    alignas(64) std::array<std::int8_t, kBlock> q;
    decltype(body(Block{}, first, more...)) sum{};
    for (std::size_t at = 0; at < first.size(); at += kBlock) {
      const std::size_t k = std::min(kBlock, first.size() - at);
      const Block b{at, std::span(u).first(k), std::span(q).first(k)};
      sum += body(b, cut(first, b), cut(more, b)...);
    }
    return sum;
  };
}

void add_signs(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  add(PRIDE_KERNEL(lion_sign_update), kIn, kBlend, kHash, kInOut, bits());
  add(PRIDE_KERNEL(apply_signs), bits(), kStep, kInOut);
  add(PRIDE_KERNEL(apply_ternary), bits(), bits(), kStep, kInOut);
  add(PRIDE_KERNEL(stochastic_signs), kIn, 1.0f, kKey, kHash, bits());
}

// All bits of the rows: plain code that no vote can be faster than.
std::uint64_t read_once(Lines lines, std::size_t words) {
  std::uint64_t all = 0;
  for (const std::uint64_t* line : lines) {
    for (std::size_t k = 0; k < words; ++k) all ^= line[k];
  }
  return all;
}

void add_votes(std::vector<KernelRow>& rows, std::size_t n) {
  const AddRow add(rows, per_row(n));
  add("read_once", read_once, sign_rows(n), n_words).dispatched = false;
  add(PRIDE_KERNEL(vote), sign_rows(n), kHash, bits());
  add(PRIDE_KERNEL(vote_ternary), sign_rows(n), bits(), bits());
}

// As in the exchange: planes of a few groups, which stay in the cache, then their numbers. What is
// left over stays in planes.
void count_and_pack(Lines lines, Radix radix, Words left, std::span<std::uint32_t> packed,
                    std::size_t words) {
  constexpr std::size_t kPlaneWords = 512, kMostPlanes = 16;
  std::array<std::uint64_t, kMostPlanes * kPlaneWords> room;
  const std::size_t n_planes = std::bit_width(lines.size()), all_groups = words / radix.n_digits;
  std::vector part(lines.begin(), lines.end());
  const auto next = [&](std::size_t size, Words planes) {
    count(part, size, n_planes, planes);
    for (auto& row : part) row += size;
  };
  const std::size_t some = kPlaneWords / radix.n_digits;
  for (std::size_t g = 0; g < all_groups; g += some) {
    const std::size_t groups = std::min(some, all_groups - g), size = groups * radix.n_digits;
    const auto planes = Words(room).first(n_planes * size);
    next(size, planes);
    pack_digits(planes, n_planes, size, radix, packed.subspan(64 * g, 64 * groups));
  }
  const std::size_t rest = words - all_groups * radix.n_digits;
  next(rest, left.first(n_planes * rest));
}

// Counts of n ranks, as bit planes and packed; the sums of two nodes of n ranks each.
void add_counts(std::vector<KernelRow>& rows, std::size_t n) {
  const AddRow add(rows, per_row(n));
  const std::size_t n_planes = std::bit_width(n), first = 0;
  const int world = static_cast<int>(n);
  const Radix radix = radix_of(static_cast<std::uint32_t>(n + 1));
  const Piece<std::uint32_t> packed{4 / static_cast<double>(radix.n_digits)};
  const auto counts = bits(n_planes), sums = bits(n_planes + 1);
  const Piece<std::uint64_t> twice{2 * sums.bytes, sums.count};  // read and written
  const Piece<std::uint64_t> unused{0, n_planes};                // what fills no group of numbers
  add(PRIDE_KERNEL(count), sign_rows(n), n_words, n_planes, counts);
  add("count+pack_digits", count_and_pack, sign_rows(n), radix, unused, packed, n_words);
  add(PRIDE_KERNEL(apply_counts), counts, n_planes, n_words, world, world, kStep, kInOut);
  add(PRIDE_KERNEL(apply_packed_counts), packed, radix, first, world, world, kStep, kInOut);
  add(PRIDE_KERNEL(max_digit), packed, radix, first, n_words);
  add(PRIDE_KERNEL(unpack_digits), packed, radix, first, n_words, n_planes, n_words, counts);
  const auto add_up = [=](Words more, Words sum, std::size_t words) {
    add_planes({more, n_planes, words}, words, {sum, n_planes + 1, words});
  };
  add("add_planes", add_up, counts, twice, n_words);
  const auto vote_on = [=](Words sum, Words positive) {
    vote_planes({sum, n_planes + 1, positive.size()}, 2 * world, kHash, positive);
  };
  add("vote_planes", vote_on, sums, bits());
  const auto draw = [=](Words sum, Words positive) {
    draw_planes({sum, n_planes, positive.size()}, world, kKey, kHash, positive);
  };
  add("draw_planes", draw, counts, bits());
}

constexpr float kScale = 0.5f;  // mean magnitude of the arrays

// A rank's levels of p bits: to nearest with a known scale, with that of each block, from floats
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

// Codes whose bits are all set are none of the levels'.
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

void add_level_votes(std::vector<KernelRow>& rows, int p, std::size_t n) {
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

// Scales, and error feedback: what goes with the levels.
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
    for (auto& sum : a.numbers()) sum = sum % 5 - 2;  // ties are among them
  };
}

void add_feedback(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  // what a worker does before it sends scaled signs
  add("feedback+pack_signs+sum_abs",
      by_block([](const Block& b, Floats g, Floats m, Floats e, Words signs) {
        feedback(g, m, e, kFeedback, b.u);
        pack_signs(b.u, kHash, signs.subspan(b.at / 64, words_for(b.u.size())));
        return sum_abs(b.u);
      }),
      kIn, kIn, kIn, bits());
  add(PRIDE_KERNEL(keep_feedback), kIn, kFeedback, bits(), 1e-3f, kInOut, kInOut);
  add(PRIDE_KERNEL(pack_signs), kIn, kHash, bits());
  add(PRIDE_KERNEL(sum_abs), kIn);
  add(PRIDE_KERNEL(sum_log2), kIn);
  add(PRIDE_KERNEL(keep_remainder), kIn, bits(), 0.1f, kOut);
  add(PRIDE_KERNEL(adam_signs), bits(), 0.01f, kAdam, kIn, kOut, kInOut).prepare = make_positive(0);
}

void mean_scaled(Lines lines, Floats e, Floats out) {
  std::vector<ScaledRow> scaled;
  for (const std::uint64_t* line : lines) {
    scaled.push_back({line, 0.25f + static_cast<float>(scaled.size())});
  }
  mean_of_signs(scaled, static_cast<int>(lines.size()), e, out);
}

void add_means(std::vector<KernelRow>& rows, std::size_t n) {
  const AddRow add(rows, per_row(n));
  // into an array of its own: the mean of means would run towards a point
  add(PRIDE_KERNEL(mean_rows), float_rows(n), static_cast<int>(n), kOut);
  add(PRIDE_KERNEL(sum_rows), float_rows(n), kOut);
  add("mean_of_signs", mean_scaled, sign_rows(n), kIn, kOut);
}

void add_ternary(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  const std::size_t n_planes = 4;
  add(PRIDE_KERNEL(ternarise), kIn, 1.0f, 1.0f, kKey, bits(), bits());
  add(PRIDE_KERNEL(sums_to_floats), bits(n_planes), n_planes, n_words, 4, 4, 0.1f, kOut).name +=
      "/4 planes";
}

// Entries of `percent`, as of DGC (0.1) and of graddrop (4).
std::size_t entries(std::size_t n, double percent) {
  return static_cast<std::size_t>(std::ceil(static_cast<double>(n) * percent / 100));
}

// The choice is made beforehand, and numbers hold it.
void choose(KernelArrays& a) {
  const TopK top = top_k(a.array(0), entries(a.n(), 4));
  a.numbers()[0] = top.magnitude;
  a.numbers()[1] = static_cast<std::uint32_t>(top.n_equal);
}

std::size_t select_chosen(Floats v, Words mask, std::span<std::uint32_t> choice) {
  TopK top{choice[0], choice[1]};
  return select(v, top, mask);
}

void add_sparse(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  const Piece<std::uint32_t> choice{0};
  add(PRIDE_KERNEL(correct_momentum), kIn, 1.0f, 0.9f, false, kInOut, kInOut);
  const auto find = [](Floats v, double percent) {
    const TopK top = top_k(v, entries(v.size(), percent));
    return top.magnitude | (std::uint64_t{top.n_equal} << 32);
  };
  const Piece<float> read_thrice{12}, entry{0.04 * 4};
  add("top_k/0.1%", find, read_thrice, 0.1);
  add("top_k/4%", find, read_thrice, 4.0);
  add("select/4%", select_chosen, kIn, bits(), choice).prepare = choose;
  KernelRow& clear = add("clear_selected/4%", clear_selected, bits(), entry);
  clear.dispatched = false;
  clear.shape.numbers = 1;
  clear.prepare = [](KernelArrays& a) {
    choose(a);
    select_chosen(a.array(0), a.bits(0), a.numbers());
  };
}

void add_optimizers(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  add(PRIDE_KERNEL(dense_lion), kIn, kBlend, kStep, kInOut, kInOut);
  add(PRIDE_KERNEL(adamw), kIn, kAdam, kInOut, kInOut, kInOut).prepare = make_positive(2);
  add(PRIDE_KERNEL(sgd_momentum), kIn, 0.9f, false, kStep, kInOut, kInOut);
  add(PRIDE_KERNEL(sgd), kIn, kStep, kInOut);
  add(PRIDE_KERNEL(apply_decay), kStep.decay, kInOut);
  add(PRIDE_KERNEL(scale), 0x1.000002p0f, kInOut);
}

void add_reductions(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  add(PRIDE_KERNEL(first_non_finite), kIn);
  add(PRIDE_KERNEL(sum_squares), kIn);
  add(PRIDE_KERNEL(sum), kIn);
  add(PRIDE_KERNEL(max_abs), kIn);
  using Halves = std::span<BFloat16>;
  add(
      "to_float", [](Halves in, Floats out) { to_float(in, out); }, kHalves, kOut);
  add("to_bf16", to_bf16, kIn, kHalves);
  const auto bits = [](Halves x) { return reinterpret_cast<std::uint16_t*>(x.data()); };
  add(
      "split", [=](Floats x, Halves u, Halves l) { split(x, bits(u), bits(l)); }, kIn, kHalves,
      kHalves);
  add(
      "join", [=](Halves u, Halves l, Floats x) { join(bits(u), bits(l), x); }, kHalves, kHalves,
      kOut);
}

}  // namespace

std::vector<KernelRow> kernel_rows(std::span<const std::size_t> n_rows) {
  std::vector<KernelRow> rows;
  const auto copy = [](Floats from, Floats to) {
    std::memcpy(to.data(), from.data(), from.size_bytes());
  };
  AddRow{rows}("memcpy", copy, kIn, kOut).dispatched = false;
  add_signs(rows);
  for (const std::size_t n : n_rows) {
    add_votes(rows, n);
    add_counts(rows, n);
    add_means(rows, n);
    for (const int p : {2, 4, 8}) add_level_votes(rows, p, n);
  }
  for (const int p : {2, 4, 8}) add_encoding(rows, p);
  add_around_levels(rows);
  add_feedback(rows);
  add_ternary(rows);
  add_sparse(rows);
  add_optimizers(rows);
  add_reductions(rows);
  return rows;
}

}  // namespace pride::app
