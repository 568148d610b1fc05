// Timing of a kernel and its yardstick in turn.
// SPDX-License-Identifier: Apache-2.0
#include "kernel_rows.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "pride/random_bits.h"

namespace pride::bench {
namespace {

// Processor time of this thread: other programs that take the core away are not counted.
double thread_seconds() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
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

}  // namespace

// From a small table, because filling 1 GiB should take no minute.
void fill(std::span<float> x, std::uint64_t seed) {
  PhiloxStream random(seed, 0, 0);
  std::vector<float> table(4099);
  for (float& value : table) value = 2 * random.next_unit() - 0.9999999f;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = table[i % table.size()];
}

void fill(std::span<std::uint64_t> words, std::uint64_t seed) {
  for (std::size_t k = 0; k < words.size(); ++k) words[k] = mix64(seed, k);
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

}  // namespace pride::bench
