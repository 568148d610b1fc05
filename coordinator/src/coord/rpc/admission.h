// Limits for one caller: calls per second, and calls at a time. Time is an argument.
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
  // Calls of one caller, waiting ones included. With replies that it has not read yet, at most four
  // times as many: on a busy machine gRPC reports late that a reply was read.
  int at_a_time = 16;
  int all_at_a_time = 4096;
};

class Admission {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Admission(CallLimits limits) : limits_(limits) {}

  // Empty: the call may go on, and answered() and leave() must follow. Otherwise the refusal.
  std::string enter(const std::string& caller, Time now);
  void answered(const std::string& caller);  // the reply is sent
  void leave(const std::string& caller);     // the reply was read, or never will be

 private:
  struct Caller {
    double tokens = 0;
    Time filled;
    int calls = 0, answered = 0;
  };
  void forget_idle(Time now);

  const CallLimits limits_;
  std::mutex mutex_;  // guards the members below
  std::map<std::string, Caller> callers_;
  int calls_ = 0;
};

}  // namespace pride::coord
