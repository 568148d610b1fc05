// Instruction sets by name, on top of Highway's table of targets.
// SPDX-License-Identifier: Apache-2.0
#include "pride/cpu.h"

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "hwy/targets.h"
#include "kernels/isa.h"
#include "pride/error.h"

namespace pride {
namespace {

constexpr std::int64_t kFallback = HWY_SCALAR | HWY_EMU128;
constexpr const char* kFallbackName =
    "SCALAR";  // plain C++ kernels, whatever Highway's fallback target is

// The selected instruction set of this process. The mutex guards all of it.
struct Choice {
  std::mutex mutex;
  std::string active;
  std::string env_error;  // text of active_isa()'s exception, if PRIDE_ISA is not usable
};

Choice& choice() {
  static Choice instance;
  return instance;
}

// The Highway target of that name; 0 is the fallback.
std::optional<std::int64_t> target_of(std::string_view name) {
  if (name == kFallbackName) return 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if ((target & kFallback) == 0 && name == hwy::TargetName(target)) return target;
  }
  return std::nullopt;
}

std::string unusable(std::string_view what, std::string_view name) {
  std::string text = concat(what, ": no instruction set '", name, "' here; usable:");
  for (const std::string& isa : available_isas()) text += " " + isa;
  return text;
}

// REQUIRES: the mutex is held and `name` is usable.
void activate(const std::string& name) {
  hwy::GetChosenTarget().Update(target_of(name).value());
  choice().active = name;
  kernels::isa_selected.store(true, std::memory_order_release);
}

}  // namespace

namespace kernels {

std::atomic<bool> isa_selected{false};

void select_isa() noexcept {
  const std::lock_guard lock(choice().mutex);
  if (isa_selected.load(std::memory_order_relaxed)) return;
  const char* env = std::getenv("PRIDE_ISA");
  const std::string wanted = env ? env : "";
  if (!wanted.empty() && target_of(wanted)) return activate(wanted);
  if (!wanted.empty()) choice().env_error = unusable("PRIDE_ISA", wanted);
  activate(available_isas().front());
}

}  // namespace kernels

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if ((target & kFallback) == 0) names.emplace_back(hwy::TargetName(target));
  }
  names.emplace_back(kFallbackName);
  return names;
}

std::string active_isa() {
  kernels::use_selected_isa();
  const std::lock_guard lock(choice().mutex);
  if (!choice().env_error.empty()) throw InvalidArgument(choice().env_error);
  return choice().active;
}

void force_isa(std::string_view name) {
  const std::string wanted = name.empty() ? available_isas().front() : std::string(name);
  if (!target_of(wanted)) throw InvalidArgument(unusable("force_isa", wanted));
  const std::lock_guard lock(choice().mutex);
  choice().env_error.clear();
  activate(wanted);
}

}  // namespace pride
