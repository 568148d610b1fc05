// Kernel and memcpy in turn; and the same kernel as plain code.
// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/measure.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <regex>
#include <utility>

#include "bench/memory.h"
#include "pride/cpu.h"
#include "pride/error.h"

namespace pride::app {
namespace {

constexpr const char* kPlain = "SCALAR";
constexpr double kShortest = 1e-3;  // s, of one measurement

// Goes back to the instruction set that was active.
class IsaGuard {
 public:
  IsaGuard() : before_(active_isa()) {}
  ~IsaGuard() { force_isa(before_); }
  IsaGuard(const IsaGuard&) = delete;
  IsaGuard& operator=(const IsaGuard&) = delete;

 private:
  std::string before_;
};

KernelArrays filled(const KernelRow& row, std::size_t n, bool awkward) {
  KernelArrays arrays(row.shape, n, awkward);
  if (row.prepare) row.prepare(arrays);
  return arrays;
}

// What a run on awkward arrays leaves behind.
KernelArrays outcome(const KernelRow& row, std::size_t n, const std::string& isa) {
  force_isa(kPlain);  // prepared alike
  KernelArrays arrays = filled(row, n, true);
  force_isa(isa);
  row.run(arrays);
  return arrays;
}

// Processor time of this thread: what takes the core away is not counted, and nothing here waits.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Calls that make up one measurement, and the measurements so far.
template <typename Work>
class Timed {
 public:
  explicit Timed(Work work) : work_(std::move(work)) {
    run(1);  // touches the memory
    const double one = run(1);
    calls_ = one >= kShortest ? 1 : static_cast<int>(std::min(1e6, kShortest / one + 1));
  }
  // Returns how long it took.
  double measure() {
    const double total = run(calls_);
    all_.push_back(total / calls_);
    return total;
  }
  int n() const { return static_cast<int>(all_.size()); }
  Times times() const { return times_of(all_); }

 private:
  double run(int calls) {
    const double start = thread_seconds();
    for (int i = 0; i < calls; ++i) work_();
    return thread_seconds() - start;
  }

  Work work_;
  int calls_ = 1;
  std::vector<double> all_;
};

void measure(const KernelRow& row, const KernelBench& how, KernelCell& cell) {
  KernelArrays arrays = filled(row, cell.coords, false);
  const auto half = static_cast<std::size_t>(std::max(1.0, cell.bytes / 8));  // floats
  const FlatBuffer from(half);
  FlatBuffer to(half);
  Timed kernel([&] { row.run(arrays); });
  Timed copy([&] { std::memcpy(to.data(), from.data(), half * sizeof(float)); });
  double total = 0;
  while (total < how.seconds || kernel.n() < how.least) {
    total += kernel.measure();
    copy.measure();
  }
  cell.times = kernel.times();
  cell.memcpy_times = copy.times();
}

// The cells of a row, checked. What plain code made does not stay in memory beyond this.
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

// Of memory for a coordinate, when it is measured: what the kernel works on, and memcpy.
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

}  // namespace

void bench_kernels(std::span<const KernelRow> rows, const KernelBench& how,
                   const std::function<void(const KernelCell&)>& done) {
  const IsaGuard guard;
  PRIDE_CHECK(!how.isas.empty(), "bench_kernels: no instruction set");
  for (const std::string& isa : how.isas) {
    PRIDE_CHECK(!isa.empty(), "bench_kernels: an instruction set without a name");
    force_isa(isa);  // is there
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

}  // namespace pride::app
