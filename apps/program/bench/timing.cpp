// Statistics of times; repetitions of steps, and the comparison of parameters after the first.
// SPDX-License-Identifier: Apache-2.0
#include "program/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "pride/error.h"
#include "program/clock.h"

namespace pride::inline program {

Times times_of(std::vector<double> seconds) {
  PRIDE_CHECK(!seconds.empty(), "times_of: nothing was measured");
  std::ranges::sort(seconds);
  const std::size_t n = seconds.size();
  const double middle = n % 2 == 1 ? seconds[n / 2] : (seconds[n / 2 - 1] + seconds[n / 2]) / 2;
  const auto rank = static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(n)));
  return {static_cast<int>(n), seconds.front(), middle, seconds[rank - 1]};
}

double largest_of(Communicator& comm, double mine) {
  return std::ranges::max(gathered(comm, mine));
}

int count_ranks(Communicator& comm, bool is_true) {
  return static_cast<int>(std::ranges::count(gathered(comm, static_cast<char>(is_true)), 1));
}

Times measure(Communicator& comm, double seconds, int least, const std::function<void()>& work) {
  constexpr double kShortest = 0.02;
  constexpr double kMostCalls = 10000;
  const auto timed = [&](int calls) {
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) work();
    return largest_of(comm, seconds_since(start) / calls);
  };
  timed(1);  // warms up
  const double one = timed(1);
  const int calls =
      one >= kShortest ? 1 : static_cast<int>(std::min(kMostCalls, kShortest / one + 1));
  std::vector<double> all;
  double total = 0;
  while (total < seconds || static_cast<int>(all.size()) < least) {
    all.push_back(timed(calls));
    total += all.back() * calls;
  }
  return times_of(std::move(all));
}

double cpu_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

namespace {

// Times of one kind of step: `slowest` of the slowest rank, the others of this rank.
struct Samples {
  std::vector<double> slowest, encode, exchange, apply;
};

double timed(Communicator& comm, TimedStep& step, StepReport& report) {
  if (step.prepare) step.prepare();
  comm.barrier();
  const auto start = std::chrono::steady_clock::now();
  report = step.run();
  return largest_of(comm, seconds_since(start));
}

void finish(Communicator& comm, const Samples& samples, StepRow& row) {
  const auto slowest_median = [&](const std::vector<double>& seconds) {
    return largest_of(comm, times_of(seconds).median_s);
  };
  row.times = times_of(samples.slowest);
  row.encode_s = slowest_median(samples.encode);
  row.exchange_s = slowest_median(samples.exchange);
  row.apply_s = slowest_median(samples.apply);
  row.bytes = largest_of(comm, row.bytes);
}

}  // namespace

std::vector<StepRow> time_steps(Communicator& comm, std::vector<TimedStep> steps,
                                const StepParams& params, double seconds, int least) {
  StepReport report;
  std::uint64_t right = 0;
  for (TimedStep& step : steps) {
    params.restore();
    timed(comm, step, report);
    if (step.row.bucket_coords == 0) continue;
    const std::uint64_t hash = params.hash();
    if (!step.row.overlap) right = gathered(comm, hash).front();
    step.row.wrong_ranks = count_ranks(comm, hash != right);
  }
  std::vector<Samples> samples(steps.size());
  double total = 0;
  for (int repetition = 0; repetition < least || total < seconds; ++repetition) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      samples[i].slowest.push_back(timed(comm, steps[i], report));
      samples[i].encode.push_back(report.encode_s);
      samples[i].exchange.push_back(report.exchange_s);
      samples[i].apply.push_back(report.apply_s);
      steps[i].row.bytes = static_cast<double>(report.bytes_sent);
      total += samples[i].slowest.back();
    }
  }
  std::vector<StepRow> rows;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    finish(comm, samples[i], steps[i].row);
    rows.push_back(std::move(steps[i].row));
  }
  return rows;
}

}  // namespace pride::inline program
