// SPDX-License-Identifier: Apache-2.0
#include "coord/rpc/admission.h"

#include <algorithm>

#include "pride/error.h"

namespace pride::coord {
namespace {

constexpr int kUnread = 4;
constexpr std::size_t kMostCallers = 8192;  // then idle callers are removed

}  // namespace

std::string Admission::enter(const std::string& caller, Time now) {
  const std::lock_guard lock(mutex_);
  if (callers_.size() >= kMostCallers) forget_idle(now);
  const auto [found, is_new] = callers_.try_emplace(caller, Caller{limits_.burst, now});
  Caller& it = found->second;
  const double passed = std::chrono::duration<double>(now - it.filled).count();
  it.tokens = std::min(limits_.burst, it.tokens + std::max(passed, 0.0) * limits_.per_second);
  it.filled = std::max(it.filled, now);
  if (it.calls - it.answered >= limits_.at_a_time || it.calls >= kUnread * limits_.at_a_time) {
    return concat("too many calls at a time: ", limits_.at_a_time, " at most");
  }
  if (calls_ >= limits_.all_at_a_time) return "too many calls of all workers at a time";
  if (it.tokens < 1) return concat("too many calls: ", limits_.per_second, " a second at most");
  it.tokens -= 1;
  ++it.calls;
  ++calls_;
  return "";
}

void Admission::answered(const std::string& caller) {
  const std::lock_guard lock(mutex_);
  ++callers_.at(caller).answered;
}

void Admission::leave(const std::string& caller) {
  const std::lock_guard lock(mutex_);
  Caller& it = callers_.at(caller);
  --it.calls;
  --it.answered;
  --calls_;
}

void Admission::forget_idle(Time now) {
  const double full_s = limits_.burst / limits_.per_second;
  std::erase_if(callers_, [&](const auto& one) {
    const double idle_s = std::chrono::duration<double>(now - one.second.filled).count();
    return one.second.calls == 0 && idle_s > full_s;
  });
}

}  // namespace pride::coord
