// Alternates kernel and memcpy; runs the same kernel as plain code; fills and compares arrays.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/measure.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <regex>
#include <utility>

#include "base/words.h"
#include "bench/kernels/rows.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/random_bits.h"

namespace pride::app {
namespace {

constexpr const char* kPlain = "SCALAR";
constexpr double kShortest = 1e-3;  // s, of one measurement

// Restores the active instruction set.
struct IsaGuard {
  ~IsaGuard() { force_isa(before); }
  const std::string before = active_isa();
};

KernelArrays filled(const KernelRow& row, std::size_t n, bool awkward) {
  KernelArrays arrays(row.shape, n, awkward);
  if (row.prepare) row.prepare(arrays);
  return arrays;
}

// The result of a run on awkward arrays, prepared by plain code.
KernelArrays outcome(const KernelRow& row, std::size_t n, const std::string& isa) {
  force_isa(kPlain);
  KernelArrays arrays = filled(row, n, true);
  force_isa(isa);
  row.run(arrays);
  return arrays;
}

// Processor time of this thread, which excludes the time of other processes. Kernels do not wait.
double seconds_of(const std::function<void()>& work, int calls) {
  const double start = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < calls; ++i) work();
  return cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - start;
}

// Calls per measurement. The first call, which touches the memory, is not timed.
int calls_of(const std::function<void()>& work) {
  const double one = (work(), seconds_of(work, 1));
  return one >= kShortest ? 1 : static_cast<int>(std::min(1e6, kShortest / one + 1));
}

void measure(const KernelRow& row, const KernelBench& how, KernelCell& cell) {
  KernelArrays arrays = filled(row, cell.coords, false);
  const auto half = static_cast<std::size_t>(std::max(1.0, cell.bytes / 8));  // floats
  const FlatBuffer from(half);
  FlatBuffer to(half);
  const auto kernel = [&] { row.run(arrays); };
  const auto copy = [&] { std::memcpy(to.data(), from.data(), half * sizeof(float)); };
  const int calls = calls_of(kernel), copies = calls_of(copy);
  std::vector<double> times, copy_times;
  for (double total = 0; total < how.seconds || std::ssize(times) < how.least;) {
    times.push_back(seconds_of(kernel, calls) / calls);
    copy_times.push_back(seconds_of(copy, copies) / copies);
    total += times.back() * calls;
  }
  cell.times = times_of(std::move(times));
  cell.memcpy_times = times_of(std::move(copy_times));
}

// The cells of a row, with results checked. Frees the results of plain code before it returns.
std::vector<KernelCell> checked_cells(const KernelRow& row, std::size_t n,
                                      std::span<const std::string> isas) {
  std::vector<KernelCell> cells;
  std::optional<KernelArrays> right;
  for (const std::string& isa : isas) {
    cells.push_back({.name = row.name,
                     .isa = row.dispatched ? isa : "",
                     .coords = n,
                     .bytes = row.bytes * static_cast<double>(n)});
    if (!row.dispatched || isa == kPlain) continue;
    if (!right) right.emplace(outcome(row, n, kPlain));
    cells.back().wrong_values = outcome(row, n, isa).differing(*right);
  }
  return cells;
}

// Bytes of memory per coordinate during a measurement: the kernel's arrays and memcpy's.
double bytes_of(const KernelRow& row) {
  const KernelShape& shape = row.shape;
  return 4.0 * static_cast<double>(shape.floats + shape.numbers) +
         static_cast<double>(shape.bits) / 8 + 2.0 * static_cast<double>(shape.halves) + row.bytes;
}

void bench_row(const KernelRow& row, std::size_t n, const KernelBench& how,
               const std::function<void(const KernelCell&)>& done) {
  const auto isas = std::span(how.isas).first(row.dispatched ? how.isas.size() : 1);
  auto cells = checked_cells(row, n, isas);
  for (std::size_t i = 0; i < isas.size(); ++i) {
    force_isa(isas[i]);
    measure(row, how, cells[i]);
    done(cells[i]);
  }
}

// Fills from a table; random numbers for hundreds of megabytes would take a minute.
void fill(std::span<float> x, std::uint64_t seed, bool awkward) {
  PhiloxStream random(seed, 0, 0);
  std::vector<float> table(4099);
  for (float& value : table) value = 2 * random.next_unit() - 0.9999999f;
  for (std::size_t i = 0; awkward && i < table.size(); i += 61) {
    constexpr std::array<float, 3> kAwkward = {0.0f, -0.0f, 0x1p-140f};
    table[i] = kAwkward[i / 61 % kAwkward.size()];
  }
  for (std::size_t at = 0; at < x.size(); at += table.size()) {
    std::copy_n(table.begin(), std::min(table.size(), x.size() - at), x.begin() + at);
  }
}

// Random bits where `mask` is set, zeros elsewhere.
template <typename T>
void fill(std::span<T> values, std::uint64_t seed, std::uint64_t mask) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(mix64(seed, i) & mask);
  }
}

// Compares bits, so that -0 differs from 0 and NaN equals itself.
template <typename T>
std::size_t count_differing(const KernelStore<T>& a, const KernelStore<T>& b) {
  std::size_t differing = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    differing += std::memcmp(&a.values[i], &b.values[i], sizeof(T)) != 0 ? 1 : 0;
  }
  return differing;
}

}  // namespace

void bench_kernels(std::span<const KernelRow> rows, const KernelBench& how,
                   const std::function<void(const KernelCell&)>& done) {
  const IsaGuard guard;
  PRIDE_CHECK(!how.isas.empty(), "bench_kernels: no instruction set");
  for (const std::string& isa : how.isas) {
    PRIDE_CHECK(!isa.empty(), "bench_kernels: an instruction set without a name");
    force_isa(isa);  // throws if it is unavailable
  }
  for (const std::size_t n : how.sizes) {
    for (const KernelRow& row : rows) {
      const double size = static_cast<double>(n);
      with_memory_for(concat(row.name, " of ", grouped(size), " coordinates"), size * bytes_of(row),
                      [&] { bench_row(row, n, how, done); });
    }
  }
}

std::vector<KernelRow> matching_rows(std::vector<KernelRow> rows, const std::string& pattern) {
  std::vector<KernelRow> chosen;
  try {
    const std::regex regex(pattern);
    std::ranges::copy_if(rows, std::back_inserter(chosen),
                         [&](const KernelRow& row) { return std::regex_search(row.name, regex); });
  } catch (const std::regex_error& error) {
    throw InvalidArgument(concat("'", pattern, "' is no regular expression: ", error.what()));
  }
  if (!chosen.empty()) return chosen;
  std::string text = concat("no kernel's name matches '", pattern, "'; there are:");
  for (const KernelRow& row : rows) text += " " + row.name;
  throw InvalidArgument(text);
}

KernelArrays::KernelArrays(const KernelShape& shape, std::size_t n, bool awkward)
    : n_(n),
      n_words_(words_for(n)),
      stores_(KernelStore<float>(shape.floats, 64 * n_words_, n),
              KernelStore<std::uint64_t>(shape.bits, n_words_, n_words_),
              KernelStore<std::uint32_t>(shape.numbers, 64 * n_words_, 64 * n_words_),
              KernelStore<BFloat16>(shape.halves, n, n)) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0}, kBelowTwo = 0xBFFF;  // of bfloat16
  for (std::size_t i = 0; i < shape.floats; ++i) fill(array(i), i, awkward);
  fill(std::get<1>(stores_).values, 9, kAll);
  fill(std::get<2>(stores_).values, 10, kAll);
  fill(std::get<3>(stores_).values, 11, kBelowTwo);
  for (std::size_t row = 0; row < shape.bits && n % 64 != 0; ++row) {
    bits(row).back() &= kAll >> (64 - n % 64);
  }
}

std::size_t KernelArrays::differing(const KernelArrays& other) const {
  const auto in = [&]<std::size_t... Kind>(std::index_sequence<Kind...>) {
    return (count_differing(std::get<Kind>(stores_), std::get<Kind>(other.stores_)) + ...);
  };
  return in(std::make_index_sequence<4>()) + (result != other.result ? 1 : 0);
}

}  // namespace pride::app
