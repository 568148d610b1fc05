// The methods by name: one line each.
// SPDX-License-Identifier: Apache-2.0
#include "methods/registry.h"

#include "codecs/frame.h"
#include "pride/bucket.h"
#include "pride/error.h"
#include "pride/methods/dense.h"
#include "pride/methods/dlion.h"
#include "pride/methods/error_feedback.h"
#include "pride/methods/signum.h"
#include "pride/methods/sparse.h"
#include "pride/methods/terngrad.h"

namespace pride {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Method> (*make)(const MethodContext&);
  MethodInfo (*info)(int world);
};

constexpr Entry kMethods[] = {
    {"adamw", methods::make_adamw, methods::adamw_info},
    {"sgdm", methods::make_sgdm, methods::sgdm_info},
    {"lion", methods::make_lion, methods::lion_info},
    {"dlion-vote", methods::make_dlion_vote, methods::dlion_vote_info},
    {"dlion-avg", methods::make_dlion_avg, methods::dlion_avg_info},
    {"signum-vote", methods::make_signum_vote, methods::signum_vote_info},
    {"signum-avg", methods::make_signum_avg, methods::signum_avg_info},
    {"terngrad", methods::make_terngrad, methods::terngrad_info},
    {"dgc", methods::make_dgc, methods::dgc_info},
    {"graddrop", methods::make_graddrop, methods::graddrop_info},
    {"signsgd-ef", methods::make_signsgd_ef, methods::signsgd_ef_info},
    {"onebit-adam", methods::make_onebit_adam, methods::onebit_adam_info},
};

const Entry& find(std::string_view name) {
  std::string known;
  for (const Entry& entry : kMethods) {
    if (entry.name == name) return entry;
    known += concat(known.empty() ? "" : ", ", entry.name);
  }
  throw InvalidArgument(concat("method '", name, "' is not known; there are: ", known));
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kMethods) names.emplace_back(entry.name);
  return names;
}

MethodInfo method_info(std::string_view name, int world) {
  PRIDE_CHECK(world >= 1, "method_info: world size ", world);
  const Entry& entry = find(name);
  MethodInfo info = entry.info(world);
  info.name = entry.name;
  return info;
}

std::map<std::string, std::string> complete_options(
    std::string_view method, const std::map<std::string, std::string>& given) {
  const MethodInfo info = method_info(method, 1);
  std::map<std::string, std::string> options;
  std::string known;
  for (const MethodOption& option : info.options) {
    options[option.name] = option.default_value;
    known += concat(known.empty() ? "" : ", ", option.name);
  }
  for (const auto& [name, value] : given) {
    PRIDE_CHECK(options.contains(name), method, ": no option '", name, "'; there ",
                known.empty() ? "are none" : "is: " + known);
    options[name] = value;
  }
  return options;
}

std::unique_ptr<Method> make_method(std::string_view name, const MethodContext& ctx) {
  return find(name).make(ctx);
}

Cost method_cost(std::string_view name, const Layout& layout, const CostQuery& query) {
  PRIDE_CHECK(query.world >= 1 && query.world <= kMaxWorld, "method_cost: world size ", query.world,
              ", must be 1 to ", kMaxWorld);
  PRIDE_CHECK(query.rank >= 0 && query.rank < query.world, "method_cost: rank ", query.rank, " of ",
              query.world);
  const auto method =
      make_method(name, {layout, query.rank, query.world, complete_options(name, query.options)});
  const auto buckets = make_buckets(layout, query.bucket_coords, query.world, method->alignment());
  return method->cost(buckets, query.rank, query.step);
}

}  // namespace pride
