// How much one caller may ask: calls a second, and calls at a time. Without a clock of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <string>

namespace pride::coord {

struct CallLimits {
  double per_second = 2000;  // of one caller, in the long run
  double burst = 10'000;     // at once
  // Of one caller, waiting ones included; answers that it has not read yet are four times as many
  // at most. gRPC tells late, on a busy machine, that one was read.
  int at_a_time = 16;
  int all_at_a_time = 4096;
};

class Admission {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Admission(CallLimits limits) : limits_(limits) {}

  // Empty: the call may go on, and leave() is owed. Else why not.
  std::string enter(const std::string& caller, Time now);
  void answered(const std::string& caller);  // leave() is owed still
  void leave(const std::string& caller);     // its answer was read, or nobody will

 private:
  struct Caller {
    double tokens = 0;
    Time filled;
    int calls = 0, answered = 0;
  };
  void forget_idle(Time now);

  const CallLimits limits_;
  std::mutex mutex_;  // of the rest
  std::map<std::string, Caller> callers_;
  int calls_ = 0;
};

}  // namespace pride::coord
