// Helpers of a step's functions: a stopwatch, and the report of errors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>

namespace pride {

// Adds the seconds of its life to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  ~Stopwatch() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Seconds of the parts of a step.
struct StepTimes {
  double encode_s = 0, exchange_s = 0, apply_s = 0;
};

// Runs the body; rethrows its exception after `report` has got its text.
template <typename Body, typename Report>
auto reporting(Body&& body, Report&& report) {
  try {
    return body();
  } catch (const std::exception& e) {
    report(e.what());
    throw;
  } catch (...) {
    report("an exception of unknown type");
    throw;
  }
}

}  // namespace pride
