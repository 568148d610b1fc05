// The rows of `pride bench kernels`; each is a kernel and its arguments.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/floats.h"
#include "bench/kernels/row_parts.h"
#include "kernels/kernels.h"
#include "kernels/log2.h"
#include "kernels/planes.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"
#include "kernels/sparse.h"
#include "kernels/ternary.h"

namespace pride::app {
namespace {

using namespace row_parts;

constexpr Feedback kFeedback{.keep = 0.9f, .take = 1, .rate = 1e-3f};
constexpr AdamScalars kAdam{0.9f, 0.1f, 0.999f, 0.001f, 1e-3f, 1, 1e-8f, kStep.decay};

void add_signs(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  add(PRIDE_KERNEL(lion_sign_update), kIn, kBlend, kHash, kInOut, bits());
  add(PRIDE_KERNEL(apply_signs), bits(), kStep, kInOut);
  add(PRIDE_KERNEL(apply_ternary), bits(), bits(), kStep, kInOut);
}

// Reads all bits of the rows in plain code: the lower bound for votes.
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

// As in the exchange: counts planes of a few groups, which stay in the cache, then packs them. The
// rest, less than a group, stays in planes.
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
  const Piece<std::uint64_t> unused{0, n_planes};                // the rest, less than a group
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
}

void add_feedback(std::vector<KernelRow>& rows) {
  const AddRow add(rows);
  // a worker's encode of scaled signs
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
  // into a separate array: means of means would converge to one value
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

// The number of entries that are `percent` of n; DGC sends 0.1, graddrop 4.
std::size_t entries(std::size_t n, double percent) {
  return static_cast<std::size_t>(std::ceil(static_cast<double>(n) * percent / 100));
}

// Stores the threshold of top_k in `numbers`, so that only select() is timed.
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
  add(PRIDE_KERNEL(apply_decay), kStep.decay.same, kInOut);
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
    add_level_votes(rows, n);
  }
  add_levels(rows);
  add_feedback(rows);
  add_ternary(rows);
  add_sparse(rows);
  add_optimizers(rows);
  add_reductions(rows);
  return rows;
}

}  // namespace pride::app
