// A row for every kernel. Each iteration times the kernel and, right after it, its yardstick on
// the same buffers (memcpy, or reading the rows once), so that noise of a shared machine hits both:
//   x_memcpy  bytes/s of the kernel (reads + writes) over bytes/s of memcpy (2n)
//   x_read    time of the kernel over the time of reading its rows once
//   ns_coord  nanoseconds per coordinate
// Ratios are of medians over the iterations. Buffers are mapped with huge pages, as FlatBuffer's.
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include "kernel_rows.h"
#include "pride/cpu.h"

int main(int argc, char** argv) {
  using namespace pride::bench;
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
