// The search over turns and periods.
// SPDX-License-Identifier: Apache-2.0
#include "program/plan/fewer_bits.h"

#include <algorithm>
#include <string>

#include "pride/error.h"
#include "pride/registry.h"

namespace pride::inline program {
namespace {

constexpr double kHidden = 1.03;  // times a step whose network takes no time
constexpr int kMost = 64;         // turns, or steps of a period

const PlanRow* fewest_bytes(const Plan& plan) {
  const PlanRow* best = nullptr;
  for (const PlanRow& row : plan.rows) {
    if (row.dense || row.method.period > 1) continue;
    if (best == nullptr || row.method.bytes < best->method.bytes) best = &row;
  }
  return best;
}

bool hides(const PlanFacts& facts, const PlanRow& row) {
  const NetworkModel none{.bytes_per_s = 1e30};
  return step_on(facts.network, facts, row) <= kHidden * step_on(none, facts, row);
}

// True if it hides with the row's number of buckets, or with fewer, which wait for fewer messages.
bool hides(const PlanFacts& facts, PlanRow row, const auto& model) {
  for (; row.buckets >= 1; row.buckets /= 2) {
    row.method = model(row.buckets);
    if (hides(facts, row)) return true;
  }
  return false;
}

int least_of(const auto& hides) {
  for (int n = 2; n <= kMost; n *= 2) {
    if (hides(n)) return n;
  }
  return 0;
}

}  // namespace

FewerBits fewer_bits(const Plan& plan) {
  const PlanFacts& facts = plan.facts;
  if (plan.has_groups) return {};  // its methods may not fit those of the groups
  const auto names = method_names();
  const bool have_muon = std::ranges::count(names, "turn-muon") > 0;
  const PlanRow* row = facts.world > 1 && have_muon ? fewest_bytes(plan) : nullptr;
  if (row == nullptr || hides(facts, *row, [&](int) { return row->method; })) return {};
  FewerBits found{.needed = true, .method = row->method.name};
  found.turns = least_of([&](int turns) {
    const PlanMethod method{"turn-muon", {{"turns", std::to_string(turns)}}};
    return hides(facts, *row, [&](int buckets) {
      const auto coords = static_cast<std::size_t>(facts.params / buckets) + 1;
      return with(row->method, sent_in(method, facts.world, facts.params, coords));
    });
  });
  found.h = least_of([&](int h) {
    return hides(facts, *row, [&](int) {
      MethodModel local = row->method;
      local.period = h;
      local.bytes /= h;
      local.local_s = local.encode_s;
      return local;
    });
  });
  return found;
}

std::string advice_on(const Plan& plan) {
  const FewerBits found = fewer_bits(plan);
  if (!found.needed) return "";
  const auto would = [](const std::string& method, int n, const char* option, const char* batch,
                        const char* why) {
    return n == 0 ? concat(" ", method, " does not hide it", why, ".")
                  : concat(" ", method, " with ", option, "=", n, " does, for ", batch, ".");
  };
  return concat(
      "The exchange of ", found.method, " does not hide behind backward.",
      would("turn-muon", found.turns, "turns", "batches of any size",
            ": each step waits for a round trip"),
      would("local-muon or local-ef", found.h, "h", "large batches per worker", ""),
      " This leaves out their arithmetic on matrices: give them in --methods to plan it.\n");
}

}  // namespace pride::inline program
