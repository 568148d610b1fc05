// Rows of the kernels that work on packed signs, levels and counts.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <bit>
#include <cstdlib>
#include <vector>

#include "kernel_rows.h"
#include "kernels/levels.h"
#include "kernels/planes.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"
#include "pride/random_bits.h"

namespace pride::bench {

void add_bits_rows(std::size_t n_rows, std::size_t n) {
  const std::size_t n_words = words_for(n), n_planes = std::bit_width(n_rows);
  add_bits("read_once", n_rows, n, 1, [](Rows rows, std::span<std::uint64_t> out) {
    benchmark::DoNotOptimize(read_all({rows[0], rows.size() * out.size()}));
  });
  add_bits("vote", n_rows, n, 1,
           [](Rows rows, std::span<std::uint64_t> out) { vote(rows, kHash, out); });
  add_bits("vote_ternary", n_rows, n, 2, [=](Rows rows, std::span<std::uint64_t> out) {
    vote_ternary(rows, out.first(n_words), out.subspan(n_words));
  });
  add_bits("count", n_rows, n, n_planes,
           [=](Rows rows, std::span<std::uint64_t> out) { count(rows, n_words, n_planes, out); });
}

// Lion Cub's levels of p bits, in the blocks of 4096 coordinates in which the quantiser works.
void add_level_rows(int bits, std::size_t n) {
  const std::string p = "/bits:" + std::to_string(bits);
  const int largest = largest_level(bits);
  const double packed = bits / 8.0;
  const auto lines_of = [bits](const Arrays& a) {
    return a.words.as<std::uint64_t>().first(words_for(a.n_) * static_cast<std::size_t>(bits));
  };
  // what a rank does before it sends, its scale being known: blend, momentum, levels, codes
  add("encode_levels" + p, 2, 12 + packed, n, [=](const Arrays& a) {
    return [=, &a] {
      alignas(64) static std::int8_t q[kBlock];
      const LevelShape shape{words_for(n), bits};
      each_block(n, [&](std::size_t at, std::size_t k) {
        lion_quantise(a.array(0).subspan(at, k), kBlend, 0.5f * static_cast<float>(largest),
                      largest, a.array(1).subspan(at, k), {q, k});
        pack_levels({q, k}, shape, at / 64, lines_of(a));
      });
    };
  });
  // the same where the scale is that of the block
  add("encode_levels_of_blocks" + p, 2, 12 + packed, n, [=](const Arrays& a) {
    return [=, &a] {
      alignas(64) static float u[kBlock];
      alignas(64) static std::int8_t q[kBlock];
      const LevelShape shape{words_for(n), bits};
      each_block(n, [&](std::size_t at, std::size_t k) {
        lion_blend(a.array(0).subspan(at, k), kBlend, a.array(1).subspan(at, k), {u, k});
        const auto mean = static_cast<float>(sum_abs({u, k}) / static_cast<double>(k));
        quantise({u, k}, 0.5f * static_cast<float>(largest) / mean, largest, {q, k});
        pack_levels({q, k}, shape, at / 64, lines_of(a));
      });
    };
  });
  // floats to packed codes alone
  add("quantise_and_pack" + p, 1, 4 + packed, n, [=](const Arrays& a) {
    return [=, &a] {
      alignas(64) static std::int8_t q[kBlock];
      const LevelShape shape{words_for(n), bits};
      each_block(n, [&](std::size_t at, std::size_t k) {
        quantise(a.array(0).subspan(at, k), 0.5f * static_cast<float>(largest), largest, {q, k});
        pack_levels({q, k}, shape, at / 64, lines_of(a));
      });
    };
  });
  for (const std::size_t n_rows : {4, 16}) {
    const double rows = static_cast<double>(n_rows);
    add("vote_levels/rows:" + std::to_string(n_rows) + p,
        2 + n_rows * static_cast<std::size_t>(bits) / 32, rows * packed + 0.125, n,
        [=](const Arrays& a) {
          const LevelShape shape{words_for(n), bits};
          const auto words = a.floats.as<std::uint64_t>();
          for (std::size_t k = 0; k < n_rows * shape.size(); ++k) {
            // the highest bit clear: codes that levels have
            const std::size_t line = k % shape.size() / kRunWords % static_cast<std::size_t>(bits);
            words[k] = line == 0 ? 0 : mix64(3, k);
          }
          return [=, &a] {
            std::vector<const std::uint64_t*> lines;
            for (std::size_t r = 0; r < n_rows; ++r)
              lines.push_back(words.data() + r * shape.size());
            if (!vote_levels({lines, shape, 0}, kHash, a.bits(0))) std::abort();
          };
        });
  }
}

// The pass over gradient and momentum before levels whose scale is that of a whole tensor.
void add_measure_rows(std::size_t n) {
  add("measure_blend", 2, 8, n, [=](const Arrays& a) {
    return [=, &a] {
      alignas(64) static float u[kBlock];
      double total = 0;
      for (std::size_t at = 0; at < n; at += kBlock) {
        const std::size_t k = std::min(kBlock, n - at);
        blend_only(a.array(0).subspan(at, k), kBlend, a.array(1).subspan(at, k), {u, k});
        total += sum_abs({u, k});
      }
      benchmark::DoNotOptimize(total);
    };
  });
}

// The server of a shard on the hierarchical route: a node's packed counts to planes, onto those of
// the other nodes, and the vote.
static void add_node_rows(std::size_t per_node, Radix radix, std::size_t n) {
  const std::size_t n_words = words_for(n), n_few = std::bit_width(per_node), n_all = n_few + 1;
  const std::string rows = "/rows:" + std::to_string(per_node);
  const double packed_bytes = 4.0 / static_cast<double>(radix.n_digits);
  const auto planes_in = [=](const Arrays& a) {
    return a.floats.as<std::uint64_t>().first(n_all * n_words);
  };
  add("unpack_digits" + rows, 1, packed_bytes + static_cast<double>(n_few) / 8, n,
      [=](const Arrays& a) {
        const auto packed = a.words.as<const std::uint32_t>();
        const auto planes = planes_in(a);
        return [=] { unpack_digits(packed, radix, 0, n_words, n_few, n_words, planes); };
      });
  add("add_planes" + rows, 1, static_cast<double>(n_few + 2 * n_all) / 8, n, [=](const Arrays& a) {
    const Planes more{a.words.as<const std::uint64_t>(), n_few, n_words};
    const MutablePlanes sum{planes_in(a), n_all, n_words};
    return [=] { add_planes(more, n_words, sum); };
  });
  add("vote_planes" + rows, 1, static_cast<double>(n_all + 1) / 8, n, [=](const Arrays& a) {
    const Planes counts{planes_in(a), n_all, n_words};
    const int present = static_cast<int>(2 * per_node);
    return [=, &a] { vote_planes(counts, present, kHash, a.bits(0)); };
  });
}

// What the two forms of dlion-avg's answer cost: the owner's counts as planes or packed, in
// nanoseconds per coordinate of its shard, and the step from either.
void add_count_forms(std::size_t n_rows, std::size_t n) {
  const std::size_t n_words = words_for(n), n_planes = std::bit_width(n_rows);
  const int world = static_cast<int>(n_rows);
  const Radix radix = radix_of(static_cast<std::uint32_t>(n_rows + 1));
  add_bits("count_then_pack", n_rows, n, n_planes, [=](Rows rows, std::span<std::uint64_t> out) {
    // as the exchange does: planes of some groups, which stay in the cache, then their numbers
    const std::size_t groups = std::max<std::size_t>(1, 512 / radix.n_digits);
    const std::size_t words = groups * radix.n_digits;
    static std::vector<std::uint64_t> planes(8 * 1024);
    std::vector<const std::uint64_t*> part(rows.begin(), rows.end());
    auto* packed = reinterpret_cast<std::uint32_t*>(out.data());
    for (std::size_t k = 0; k + words <= n_words; k += words, packed += 64 * groups) {
      count(part, words, n_planes, std::span(planes).first(n_planes * words));
      pack_digits(planes, n_planes, words, radix, {packed, 64 * groups});
      for (auto& row : part) row += words;
    }
  });
  const std::string rows = "/rows:" + std::to_string(n_rows);
  add("apply_counts" + rows, 1, 8 + n_planes / 8.0, n, [=](const Arrays& a) {
    const auto planes = a.words.as<const std::uint64_t>();
    return [=, &a] { apply_counts(planes, n_planes, n_words, world, world, kStep, a.array(0)); };
  });
  const double packed_bytes = 4.0 / static_cast<double>(radix.n_digits);
  add("apply_packed_counts" + rows, 1, 8 + packed_bytes, n, [=](const Arrays& a) {
    const auto packed = a.words.as<const std::uint32_t>();
    return [=, &a] { apply_packed_counts(packed, radix, 0, world, world, kStep, a.array(0)); };
  });
  add("max_digit" + rows, 1, packed_bytes, n, [=](const Arrays& a) {
    const auto packed = a.words.as<const std::uint32_t>();
    return [=] { benchmark::DoNotOptimize(max_digit(packed, radix, 0, n_words)); };
  });
  add_node_rows(n_rows, radix, n);
}

}  // namespace pride::bench
