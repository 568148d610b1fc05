// A row for every kernel. Each iteration times the kernel and, right after it, its yardstick on
// the same buffers (memcpy, or reading the rows once), so that noise of a shared machine hits both:
//   x_memcpy  bytes/s of the kernel (reads + writes) over bytes/s of memcpy (2n)
//   x_read    time of the kernel over the time of reading its rows once
//   ns_coord  nanoseconds per coordinate
// Ratios are of medians over the iterations. Buffers are mapped with huge pages, as FlatBuffer's.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/planes.h"
#include "kernels/radix.h"
#include "kernels/scaled_signs.h"
#include "kernels/sparse.h"
#include "kernels/ternary.h"
#include "pride/cpu.h"
#include "pride/random_bits.h"

namespace {

using namespace pride::kernels;

// Processor time of this thread: other programs that take the core away are not counted.
double thread_seconds() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Zeroed memory with huge pages where the system grants them; freed at the end of the program.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(bytes) {
    at_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    if (!std::getenv("PRIDE_BENCH_SMALL_PAGES")) ::madvise(at_, bytes_, MADV_HUGEPAGE);
  }
  ~Mapping() { ::munmap(at_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  template <typename T>
  std::span<T> as() const {
    return {static_cast<T*>(at_), bytes_ / sizeof(T)};
  }

 private:
  std::size_t bytes_;
  void* at_;
};

// Values in (-1, 1) without zeros; from a small table, because filling 1 GiB should take no minute.
void fill(std::span<float> x, std::uint64_t seed) {
  pride::PhiloxStream random(seed, 0, 0);
  std::vector<float> table(4099);
  for (float& value : table) value = 2 * random.next_unit() - 0.9999999f;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = table[i % table.size()];
}

void fill(std::span<std::uint64_t> words, std::uint64_t seed) {
  for (std::size_t k = 0; k < words.size(); ++k) words[k] = pride::mix64(seed, k);
}

template <typename Body>
double seconds(const Body& body) {
  const double start = thread_seconds();
  body();
  benchmark::ClobberMemory();
  return thread_seconds() - start;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::uint64_t read_all(std::span<const std::uint64_t> words) {
  std::uint64_t acc[16] = {};
  for (std::size_t k = 0; k + 16 <= words.size(); k += 16) {
    for (std::size_t j = 0; j < 16; ++j) acc[j] |= words[k + j];
  }
  std::uint64_t all = 0;
  for (const std::uint64_t part : acc) all |= part;
  return all;
}

// One row: `kernel` against `yardstick`, alternately.
struct Row {
  std::size_t n;           // coordinates
  double bytes;            // that the kernel reads and writes
  double yardstick_bytes;  // that the yardstick reads and writes
  const char* ratio;       // "x_memcpy" or "x_read"
  std::function<void()> kernel, yardstick;
};

void run(benchmark::State& state, const Row& row) {
  std::vector<double> mine, other;
  row.kernel();  // touch everything once
  row.yardstick();
  for (auto _ : state) {
    mine.push_back(seconds(row.kernel));
    other.push_back(seconds(row.yardstick));
    state.SetIterationTime(mine.back());
  }
  const double t = median(mine), t0 = median(other);
  state.counters["GB/s"] = row.bytes / t * 1e-9;
  state.counters["ref_GB/s"] = row.yardstick_bytes / t0 * 1e-9;
  state.counters["ns_coord"] = t / static_cast<double>(row.n) * 1e9;
  const bool read = std::string_view(row.ratio) == "x_read";
  state.counters[row.ratio] = read ? t / t0 : (row.bytes / t) / (row.yardstick_bytes / t0);
}

const Blend kBlend{
    .beta1 = 0.9f, .one_minus_beta1 = 0.1f, .beta2 = 0.99f, .one_minus_beta2 = 0.01f};
const Step kStep{.decay = 0.99997f, .lr = 3e-4f};
const HashWords kHash{.key = 1, .first_word = 0};

// Four arrays of n floats and words to go with them; memcpy goes from the first to the second.
struct Arrays {
  explicit Arrays(std::size_t n, std::size_t n_arrays)
      : n_(n), floats(n * n_arrays * 4), words(words_for(n) * 8 * 8) {
    for (std::size_t i = 0; i < n_arrays; ++i) fill(array(i), i);
    fill(words.as<std::uint64_t>(), 9);
  }
  std::span<float> array(std::size_t i) const { return floats.as<float>().subspan(i * n_, n_); }
  std::span<std::uint64_t> bits(std::size_t i) const {
    return words.as<std::uint64_t>().subspan(i * words_for(n_), words_for(n_));
  }

  std::size_t n_;
  Mapping floats, words;
};

using Make = std::function<std::function<void()>(const Arrays&)>;

// A row over `n_arrays` float arrays that moves `bytes_per_coord`.
void add(const std::string& name, std::size_t n_arrays, double bytes_per_coord, std::size_t n,
         const Make& make) {
  const auto body = [=](benchmark::State& state) {
    const Arrays arrays(n, std::max<std::size_t>(n_arrays, 2));
    const double dn = static_cast<double>(n);
    run(state,
        {.n = n,
         .bytes = bytes_per_coord * dn,
         .yardstick_bytes = 8 * dn,
         .ratio = "x_memcpy",
         .kernel = make(arrays),
         .yardstick = [&] { std::memcpy(arrays.array(1).data(), arrays.array(0).data(), 4 * n); }});
  };
  benchmark::RegisterBenchmark((name + "/" + std::to_string(n)).c_str(), body)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void add_float_rows(std::size_t n) {
  const auto copy = [](const Arrays& a) {
    return [&] { std::memcpy(a.array(1).data(), a.array(0).data(), a.array(0).size_bytes()); };
  };
  add("memcpy", 2, 8, n, copy);
  add("lion_sign_update", 2, 12.125, n, [](const Arrays& a) {
    return [&] { lion_sign_update(a.array(0), kBlend, kHash, a.array(1), a.bits(0)); };
  });
  add("lion_sign_update_sparse", 2, 12.125 + 1.0 / 512, n, [](const Arrays& a) {
    return [&] {
      const auto presence = a.bits(1).first(words_for(a.bits(0).size()));
      lion_sign_update_sparse(a.array(0), kBlend, kHash, a.array(1), a.bits(0), presence);
    };
  });
  add("apply_signs", 1, 8.125, n,
      [](const Arrays& a) { return [&] { apply_signs(a.bits(0), kStep, a.array(0)); }; });
  add("apply_ternary", 1, 8.25, n, [](const Arrays& a) {
    return [&] { apply_ternary(a.bits(0), a.bits(1), kStep, a.array(0)); };
  });
  add("apply_counts_3_planes", 1, 8.375, n, [](const Arrays& a) {
    const auto planes = a.words.as<const std::uint64_t>();
    return [&a, planes] { apply_counts(planes, 3, a.bits(0).size(), 4, 4, kStep, a.array(0)); };
  });
  add("apply_decay", 1, 8, n,
      [](const Arrays& a) { return [&] { apply_decay(0.9999f, a.array(0)); }; });
  add("scale", 1, 8, n, [](const Arrays& a) { return [&] { scale(0.9999f, a.array(0)); }; });
  add("sgd_momentum", 3, 20, n, [](const Arrays& a) {
    return [&] { sgd_momentum(a.array(0), 0.9f, false, kStep, a.array(1), a.array(2)); };
  });
  add("ternarise", 1, 4.25, n, [](const Arrays& a) {
    return [&] {
      ternarise(a.array(0), 1.0f, 1.0f, {.seed = 7, .step = 3, .rank = 1}, a.bits(0), a.bits(1));
    };
  });
  add("sums_to_floats_4_planes", 1, 4.5, n, [](const Arrays& a) {
    const auto planes = a.words.as<const std::uint64_t>();
    return [&a, planes] { sums_to_floats(planes, 4, a.bits(0).size(), 4, 4, 0.1f, a.array(0)); };
  });
  add("correct_momentum", 3, 20, n, [](const Arrays& a) {
    return [&] { correct_momentum(a.array(0), 1.0f, 0.9f, false, a.array(1), a.array(2)); };
  });
  add("top_k_4_percent", 1, 12, n, [n](const Arrays& a) {
    return [&, n] { benchmark::DoNotOptimize(top_k(a.array(0), n / 25)); };
  });
  add("select_4_percent", 1, 4.125, n, [n](const Arrays& a) {
    const TopK top = top_k(a.array(0), n / 25);
    return [&a, top] {
      TopK left = top;
      benchmark::DoNotOptimize(select(a.array(0), left, a.bits(0)));
    };
  });
  add("dense_lion", 3, 20, n, [](const Arrays& a) {
    return [&] { dense_lion(a.array(0), kBlend, kStep, a.array(1), a.array(2)); };
  });
  add("adamw", 4, 28, n, [](const Arrays& a) {
    const AdamScalars s{.beta1 = 0.9f,
                        .one_minus_beta1 = 0.1f,
                        .beta2 = 0.999f,
                        .one_minus_beta2 = 0.001f,
                        .step_size = 1e-3f,
                        .eps = 1e-8f};
    std::ranges::fill(a.array(2), 1e-4f);  // v: never negative
    return [&a, s] { adamw(a.array(0), s, a.array(1), a.array(2), a.array(3)); };
  });
  add("mean_rows_4", 4, 20, n, [](const Arrays& a) {
    return [&] {
      const float* rows[] = {a.array(0).data(), a.array(1).data(), a.array(2).data(),
                             a.array(3).data()};
      mean_rows(rows, 4, a.array(0));
    };
  });
  add("sum_rows_4", 4, 20, n, [](const Arrays& a) {
    std::ranges::fill(a.array(0), 0.0f);
    return [&] {
      const float* rows[] = {a.array(1).data(), a.array(1).data(), a.array(2).data(),
                             a.array(3).data()};
      sum_rows(rows, a.array(0));
    };
  });
  add("first_non_finite", 1, 4, n, [](const Arrays& a) {
    return [&] { benchmark::DoNotOptimize(first_non_finite(a.array(0))); };
  });
  add("sum_squares", 1, 4, n,
      [](const Arrays& a) { return [&] { benchmark::DoNotOptimize(sum_squares(a.array(0))); }; });
}

// The kernels of error feedback, in the blocks of 4096 coordinates in which the methods call them.
constexpr std::size_t kBlock = 4096;

void add_feedback_rows(std::size_t n) {
  const auto each = [](std::size_t n_coords, const auto& body) {
    for (std::size_t at = 0; at < n_coords; at += kBlock) {
      body(at, std::min(kBlock, n_coords - at));
    }
  };
  const Feedback f{.keep = 0.9f, .take = 1, .rate = 1e-3f};
  // what a worker does before it sends: p, its signs and the sum for the scale
  add("feedback_encode", 3, 12.125, n, [=](const Arrays& a) {
    return [&a, each, f] {
      static float p[kBlock];
      each(a.n_, [&](std::size_t at, std::size_t k) {
        const std::span<float> part(p, k);
        feedback(a.array(0).subspan(at, k), a.array(1).subspan(at, k), a.array(2).subspan(at, k), f,
                 part);
        pack_signs(part, kHash, a.bits(0).subspan(at / 64, words_for(k)));
        benchmark::DoNotOptimize(sum_abs(part));
      });
    };
  });
  add("keep_feedback", 3, 20.125, n, [=](const Arrays& a) {
    return [&a, f] { keep_feedback(a.array(0), f, a.bits(0), 1e-3f, a.array(1), a.array(2)); };
  });
  add("keep_remainder", 2, 8.125, n, [](const Arrays& a) {
    return [&] { keep_remainder(a.array(0), a.bits(0), 0.1f, a.array(1)); };
  });
  add("pack_signs", 1, 4.125, n,
      [](const Arrays& a) { return [&] { pack_signs(a.array(0), kHash, a.bits(0)); }; });
  add("sum_abs", 1, 4, n,
      [](const Arrays& a) { return [&] { benchmark::DoNotOptimize(sum_abs(a.array(0))); }; });
  add("mean_of_signs_4", 2, 8.5, n, [](const Arrays& a) {
    return [&] {
      std::vector<ScaledRow> rows;
      for (std::size_t r = 0; r < 4; ++r) rows.push_back({a.bits(r).data(), 0.5f});
      mean_of_signs(rows, 4, a.array(0), a.array(1));
    };
  });
  add("adam_signs", 3, 16.125, n, [](const Arrays& a) {
    const AdamScalars s{.step_size = 1e-3f, .eps = 1e-8f};
    std::ranges::fill(a.array(0), 1e-4f);  // v: never negative
    return [&a, s] { adam_signs(a.bits(0), 0.01f, s, a.array(0), a.array(1), a.array(2)); };
  });
}

using Rows = std::span<const std::uint64_t* const>;
using BitsKernel = std::function<void(Rows, std::span<std::uint64_t>)>;

// A row over packed signs of n_rows ranks, against reading those rows once.
void add_bits(const std::string& name, std::size_t n_rows, std::size_t n, std::size_t n_out,
              const BitsKernel& kernel) {
  const auto body = [=](benchmark::State& state) {
    const std::size_t n_words = words_for(n);
    const Mapping in(n_rows * n_words * 8), out(n_out * n_words * 8);
    const auto words = in.as<std::uint64_t>();
    fill(words, 3);
    std::vector<const std::uint64_t*> rows;
    for (std::size_t r = 0; r < n_rows; ++r) rows.push_back(words.data() + r * n_words);
    const double read = static_cast<double>(words.size_bytes());
    run(state, {.n = n,
                .bytes = read + static_cast<double>(n_out * n_words) * 8,
                .yardstick_bytes = read,
                .ratio = "x_read",
                .kernel = [&] { kernel(rows, out.as<std::uint64_t>()); },
                .yardstick = [&] { benchmark::DoNotOptimize(read_all(words)); }});
  };
  const std::string full = name + "/rows:" + std::to_string(n_rows) + "/" + std::to_string(n);
  benchmark::RegisterBenchmark(full.c_str(), body)->UseManualTime()->Unit(benchmark::kMillisecond);
}

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
  const auto each = [](std::size_t n_coords, const auto& body) {
    for (std::size_t at = 0; at < n_coords; at += kBlock) {
      body(at, std::min(kBlock, n_coords - at));
    }
  };
  // what a rank does before it sends, its scale being known: blend, momentum, levels, codes
  add("encode_levels" + p, 2, 12 + packed, n, [=](const Arrays& a) {
    return [=, &a] {
      alignas(64) static std::int8_t q[kBlock];
      const LevelShape shape{words_for(n), bits};
      each(n, [&](std::size_t at, std::size_t k) {
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
      each(n, [&](std::size_t at, std::size_t k) {
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
      each(n, [&](std::size_t at, std::size_t k) {
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
            words[k] = line == 0 ? 0 : pride::mix64(3, k);
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

// What the owner of a shard does in two levels: a host's packed counts to planes, onto those of the
// other hosts, and the vote.
void add_host_rows(std::size_t per_host, Radix radix, std::size_t n) {
  const std::size_t n_words = words_for(n), n_few = std::bit_width(per_host), n_all = n_few + 1;
  const std::string rows = "/rows:" + std::to_string(per_host);
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
    const int present = static_cast<int>(2 * per_host);
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
  add_host_rows(n_rows, radix, n);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("isa", pride::active_isa());
  for (const std::size_t n : {std::size_t{10'000'000}, std::size_t{256} << 20}) {
    add_float_rows(n);
    add_feedback_rows(n);
  }
  for (const std::size_t n : {std::size_t{10'000'000}, std::size_t{64} << 20}) {
    for (const int bits : {2, 4, 8}) add_level_rows(bits, n);
    add_measure_rows(n);
  }
  for (const std::size_t n_rows : {1, 2, 3, 4, 5, 8, 16, 32, 64}) {
    add_bits_rows(n_rows, std::size_t{64} << 20);
  }
  add_bits_rows(4, std::size_t{1} << 30);
  for (const std::size_t n_rows : {2, 4, 8, 16, 32}) add_count_forms(n_rows, std::size_t{64} << 20);
  benchmark::RunSpecifiedBenchmarks();
}
