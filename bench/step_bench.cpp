// One training step with the gradients ready: Distributed Lion next to dense steps, in one run.
// SPDX-License-Identifier: Apache-2.0
//
//   step_bench [--coords N] [--ranks N] [--reps N] [--bucket N] [--overlap] [--json]
//                                        ranks as threads of this process
//   mpirun -n 4 step_bench ...           ranks as processes
//   torchrun --no_python --nproc_per_node 4 step_bench ...       the same over c10d (Gloo)
//
// Rows: a pride::Optimizer step of each method; on processes the transport's own fp32 all-reduce
// plus the dense Lion kernel; on threads a dense step made for shared memory (each thread averages
// its part of all ranks' gradients in place, then all run the dense Lion kernel). Rounds are
// interleaved and all ranks start together; times are medians over rounds of the slowest rank.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "pride/comm/thread_comm.h"
#include "pride/cpu.h"
#include "pride/error.h"
#include "pride/flat_buffer.h"
#include "pride/optimizer.h"
#include "pride/registry.h"
#if PRIDE_HAVE_MPI
#include "pride/comm/mpi_comm.h"
#endif
#if PRIDE_HAVE_C10D
#include "pride/comm/c10d_env.h"
#endif

namespace pride {
namespace {

struct Settings {
  std::size_t coords = 10'000'000;
  int ranks = 4;
  int reps = 9;
  std::size_t bucket = OptimizerOptions{}.bucket_coords;
  bool overlap = false;
  bool json = false;
  std::string only;  // this method alone; empty: all
};

// What the dense step for shared memory needs of the other threads.
struct Shared {
  explicit Shared(int ranks) : all_here(ranks), grads(static_cast<std::size_t>(ranks)) {}
  std::barrier<> all_here;
  std::vector<const float*> grads;
  FlatBuffer mean;
};

struct Row {
  std::string name;
  std::function<void()> prepare;  // not timed
  std::function<void()> step;     // timed
};

// One rank's arrays, gradients filled.
struct Arrays {
  explicit Arrays(const Layout& layout, int rank)
      : params(layout.flat_size()), grads(layout.flat_size()), moments(layout.flat_size()) {
    std::uint32_t state = 12345u + static_cast<std::uint32_t>(rank);
    for (float& g : grads.span()) {
      state = state * 1664525u + 1013904223u;
      g = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    }
  }
  FlatBuffer params, grads, moments;
};

constexpr kernels::Blend kBlend{0.9f, 0.1f, 0.99f, 0.01f};
constexpr kernels::Step kStep{1.0f, 1e-4f};

void shared_dense_step(Communicator& comm, Shared& shared, Arrays& a) {
  const std::size_t n = a.grads.size();
  const auto world = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  shared.grads[rank] = a.grads.data();
  shared.all_here.arrive_and_wait();
  const std::size_t begin = n * rank / world / 64 * 64;
  const std::size_t end = rank + 1 == world ? n : n * (rank + 1) / world / 64 * 64;
  std::vector<const float*> rows;
  for (const float* g : shared.grads) rows.push_back(g + begin);
  kernels::mean_rows(rows, comm.size(), shared.mean.span().subspan(begin, end - begin));
  shared.all_here.arrive_and_wait();
  kernels::dense_lion(shared.mean.span(), kBlend, kStep, a.moments.span(), a.params.span());
}

std::vector<Row> make_rows(Communicator& comm, Shared* shared, const Settings& s, Arrays& a,
                           const Layout& layout,
                           std::vector<std::unique_ptr<Optimizer>>& optimizers) {
  std::vector<Row> rows;
  for (const std::string& method : method_names()) {
    if (!s.only.empty() && method != s.only) continue;
    optimizers.push_back(std::make_unique<Optimizer>(
        comm, layout,
        OptimizerOptions{.method = method, .bucket_coords = s.bucket, .overlap = s.overlap}));
    Optimizer* optimizer = optimizers.back().get();
    rows.push_back(
        {method, [] {}, [&a, optimizer] { optimizer->step(a.params.span(), a.grads.span()); }});
  }
  if (shared != nullptr) {
    rows.push_back({"shared-memory dense Lion", [] {},
                    [&comm, shared, &a] { shared_dense_step(comm, *shared, a); }});
    return rows;
  }
  auto sum = std::make_shared<FlatBuffer>(layout.flat_size());
  rows.push_back(
      {"native all-reduce + dense Lion",
       [&a, sum] { std::copy(a.grads.span().begin(), a.grads.span().end(), sum->span().begin()); },
       [&comm, &a, sum] {
         comm.native_sum(sum->span());
         kernels::scale(1.0f / static_cast<float>(comm.size()), sum->span());
         kernels::dense_lion(sum->span(), kBlend, kStep, a.moments.span(), a.params.span());
       }});
  return rows;
}

// Slowest rank's seconds of one timed step.
double timed(Communicator& comm, const Row& row) {
  row.prepare();
  comm.barrier();
  const auto start = std::chrono::steady_clock::now();
  row.step();
  const double mine =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::vector<double> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

void report(const Settings& s, Communicator& comm,
            const std::vector<std::pair<std::string, double>>& medians) {
  const double vote = std::find_if(medians.begin(), medians.end(), [&](const auto& m) {
                        return m.first == (s.only.empty() ? "dlion-vote" : s.only);
                      })->second;
  if (!s.json) {
    std::printf("one step, %zu coordinates, %d ranks (%s), %s, median of %d rounds\n", s.coords,
                comm.size(), std::string(comm.transport()).c_str(), active_isa().c_str(), s.reps);
    std::printf("%-32s %10s %22s\n", "step", "ms", "times dlion-vote");
  }
  for (const auto& [name, seconds] : medians) {
    if (s.json) {
      std::printf(
          "{\"row\": \"%s\", \"coords\": %zu, \"ranks\": %d, \"transport\": \"%s\", \"ms\": %.3f, "
          "\"times_dlion_vote\": %.3f}\n",
          name.c_str(), s.coords, comm.size(), std::string(comm.transport()).c_str(), seconds * 1e3,
          seconds / vote);
    } else {
      std::printf("%-32s %10.2f %22.2f\n", name.c_str(), seconds * 1e3, seconds / vote);
    }
  }
}

void run_rank(const Settings& s, Communicator& comm, Shared* shared) {
  const Layout layout({{"weights", {static_cast<std::int64_t>(s.coords)}}});
  Arrays arrays(layout, comm.rank());
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  const std::vector<Row> rows = make_rows(comm, shared, s, arrays, layout, optimizers);
  std::map<std::string, std::vector<double>> times;
  for (int rep = -1; rep < s.reps; ++rep) {
    for (const Row& row : rows) {
      const double seconds = timed(comm, row);
      if (rep >= 0) times[row.name].push_back(seconds);  // the first round warms up
    }
  }
  std::vector<std::pair<std::string, double>> medians;
  for (const Row& row : rows) {
    auto& t = times[row.name];
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.emplace_back(row.name, t[t.size() / 2]);
  }
  if (comm.rank() == 0) report(s, comm, medians);
}

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto number = [&] {
      PRIDE_CHECK(i + 1 < argc, flag, " needs a number");
      const long value = std::strtol(argv[++i], nullptr, 10);
      PRIDE_CHECK(value >= 1, flag, " needs a number of at least 1");
      return value;
    };
    if (flag == "--coords")
      s.coords = static_cast<std::size_t>(number());
    else if (flag == "--ranks")
      s.ranks = static_cast<int>(number());
    else if (flag == "--reps")
      s.reps = static_cast<int>(number());
    else if (flag == "--bucket")
      s.bucket = static_cast<std::size_t>(number());
    else if (flag == "--overlap")
      s.overlap = true;
    else if (flag == "--only" && i + 1 < argc)
      s.only = method_info(argv[++i], 1).name;
    else if (flag == "--json")
      s.json = true;
    else
      throw InvalidArgument(
          "usage: step_bench [--coords N] [--ranks N] [--reps N] [--only METHOD] [--bucket N] "
          "[--overlap] [--json]");
  }
  return s;
}

int run(int argc, char** argv) {
  const Settings s = parse(argc, argv);
#if PRIDE_HAVE_MPI
  if (launched_by_mpi()) {
    const MpiEnvironment mpi;
    const auto comm = make_mpi_communicator();
    run_rank(s, *comm, nullptr);
    return 0;
  }
#endif
#if PRIDE_HAVE_C10D
  if (launched_by_torchrun()) {
    run_rank(s, *make_c10d_communicator_from_env(), nullptr);
    return 0;
  }
#endif
  Shared shared(s.ranks);
  shared.mean =
      FlatBuffer(Layout({{"weights", {static_cast<std::int64_t>(s.coords)}}}).flat_size());
  run_world(s.ranks, [&](Communicator& comm) { run_rank(s, comm, &shared); });
  return 0;
}

}  // namespace
}  // namespace pride

int main(int argc, char** argv) {
  try {
    return pride::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "step_bench: %s\n", e.what());
    return 1;
  }
}
