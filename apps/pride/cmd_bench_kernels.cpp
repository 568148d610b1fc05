// `pride bench kernels`: each kernel on one core, with memcpy beside it.
// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/kernels/measure.h"
#include "commands.h"
#include "integer_check.h"
#include "number_check.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "text/table.h"

namespace pride::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostCoords = std::int64_t{1} << 30;

struct Arguments {
  std::vector<std::int64_t> sizes = {10'000, 1'000'000, 10'000'000};
  std::vector<std::size_t> rows = {4, 16};
  std::string filter = ".*";
  std::vector<std::string> isas;
  double seconds = 0.1;
  int reps = 5;
  bool json = false, small_pages = false;
};

std::vector<std::string> isas_of(const Arguments& args) {
  if (args.isas.empty()) return {active_isa()};
  if (args.isas == std::vector<std::string>{"all"}) return available_isas();
  return args.isas;
}

Json cell_json(const KernelCell& cell) {
  return {{"row", "kernel"},
          {"name", cell.name},
          {"coords", cell.coords},
          {"isa", cell.isa.empty() ? Json(nullptr) : Json(cell.isa)},
          {"measurements", cell.times.n},
          {"min_s", cell.times.min_s},
          {"median_s", cell.times.median_s},
          {"p99_s", cell.times.p99_s},
          {"bytes_moved", cell.bytes},
          {"bytes_per_s", cell.bytes_per_s()},
          {"memcpy_min_s", cell.memcpy_times.min_s},
          {"memcpy_median_s", cell.memcpy_times.median_s},
          {"memcpy_p99_s", cell.memcpy_times.p99_s},
          {"times_memcpy", cell.of_memcpy()},
          {"wrong_values", cell.wrong_values ? Json(*cell.wrong_values) : Json(nullptr)},
          {"checked_against", cell.wrong_values ? Json("SCALAR") : Json(nullptr)}};
}

void print_head() {
  std::printf("%-34s %13s %-8s %10s %10s %10s %8s %9s %8s\n", "kernel", "coordinates", "isa",
              "min us", "median us", "p99 us", "GB/s", "x memcpy", "wrong");
}

void print_cell(const KernelCell& cell) {
  std::printf("%-34s %13s %-8s %10.2f %10.2f %10.2f %8.2f %9.2f %8s\n", cell.name.c_str(),
              grouped(static_cast<double>(cell.coords)).c_str(),
              cell.isa.empty() ? "-" : cell.isa.c_str(), cell.times.min_s * 1e6,
              cell.times.median_s * 1e6, cell.times.p99_s * 1e6, cell.bytes_per_s() * 1e-9,
              cell.of_memcpy(),
              cell.wrong_values ? std::to_string(*cell.wrong_values).c_str() : "-");
  std::fflush(stdout);
}

void run_kernels(const Arguments& args) {
  if (args.small_pages) ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const auto rows = matching_rows(kernel_rows(args.rows), args.filter);
  const KernelBench how{.sizes = {args.sizes.begin(), args.sizes.end()},
                        .isas = isas_of(args),
                        .seconds = args.seconds,
                        .least = args.reps};
  bool first = true;  // no head where nothing follows but an error
  bench_kernels(rows, how, [&](const KernelCell& cell) {
    if (args.json) {
      std::cout << cell_json(cell) << std::endl;
      return;
    }
    if (std::exchange(first, false)) print_head();
    print_cell(cell);
  });
  if (args.json) return;
  std::cout
      << "GB/s: bytes read and written, at the median. x memcpy: the same over memcpy's, which "
         "moves as many bytes in turn with the kernel.\nwrong: values that differ from those "
         "of plain code (SCALAR) in any bit; -: plain code itself. /4: of 4 rows; /p4: 4 bits "
         "a level.\n";
}

}  // namespace

void add_bench_kernels_command(CLI::App& bench) {
  const auto args = std::make_shared<Arguments>();
  CLI::App* kernels = bench.add_subcommand(
      "kernels", "Every kernel of a step on one core, beside memcpy, checked; no other ranks");
  kernels->add_option("--sizes", args->sizes, "Coordinates, separated by commas")
      ->delimiter(',')
      ->capture_default_str()
      ->check(integer_check<std::int64_t>(1, kMostCoords));
  kernels
      ->add_option("--filter", args->filter,
                   "Kernels of whose name this regular expression matches a part")
      ->capture_default_str();
  kernels
      ->add_option("--isa", args->isas,
                   "Instruction sets, separated by commas, as `pride info` names them, or all. "
                   "Default: the one that training would use")
      ->delimiter(',');
  kernels
      ->add_option("--rows", args->rows,
                   "Ranks whose rows votes, counts and means read; a row of the table for each")
      ->delimiter(',')
      ->capture_default_str()
      ->check(integer_check<std::size_t>(1, 1024));
  kernels->add_option("--seconds", args->seconds, "Of each kernel, at least; memcpy takes as long")
      ->capture_default_str()
      ->check(number_check())
      ->check(CLI::Range(0.001, 3600.0));
  kernels->add_option("--reps", args->reps, "Measurements of each kernel, at least")
      ->capture_default_str()
      ->check(integer_check<int>(1, 1'000'000));
  kernels->add_flag(
      "--small-pages", args->small_pages,
      "Arrays on pages of 4 KiB. Default: on huge pages, where the system grants them");
  kernels->add_flag("--json", args->json, "JSON lines, one for each row");
  kernels->callback([args] { run_kernels(*args); });
}

}  // namespace pride::app
