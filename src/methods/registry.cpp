// The methods by name: one line each.
// SPDX-License-Identifier: Apache-2.0
#include "methods/registry.h"

#include <set>

#include "codecs/frame.h"
#include "pride/bucket.h"
#include "pride/error.h"
#include "pride/methods/dense.h"
#include "pride/methods/dlion.h"
#include "pride/methods/error_feedback.h"
#include "pride/methods/lion_cub.h"
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

// Ranks whose costs are looked at one by one, where they do not follow from the shards.
constexpr int kMostAsked = 1024;

constexpr Entry kMethods[] = {
    {"adamw", methods::make_adamw, methods::adamw_info},
    {"sgdm", methods::make_sgdm, methods::sgdm_info},
    {"lion", methods::make_lion, methods::lion_info},
    {"dlion-vote", methods::make_dlion_vote, methods::dlion_vote_info},
    {"dlion-avg", methods::make_dlion_avg, methods::dlion_avg_info},
    {"signum-vote", methods::make_signum_vote, methods::signum_vote_info},
    {"signum-avg", methods::make_signum_avg, methods::signum_avg_info},
    {"lion-cub", methods::make_lion_cub, methods::lion_cub_info},
    {"lion-cub-auto", methods::make_lion_cub_auto, methods::lion_cub_auto_info},
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

struct Made {
  std::unique_ptr<Method> method;
  std::vector<Bucket> buckets;
};

Made made_for(std::string_view name, const Layout& layout, const CostQuery& query) {
  PRIDE_CHECK(query.world >= 1 && query.world <= kMaxWorld, "method_cost: world size ", query.world,
              ", must be 1 to ", kMaxWorld);
  PRIDE_CHECK(query.rank >= 0 && query.rank < query.world, "method_cost: rank ", query.rank, " of ",
              query.world);
  const Hosts hosts =
      query.ranks_per_host > 0 ? Hosts::of_size(query.world, query.ranks_per_host) : Hosts();
  auto method = make_method(
      name, {layout, query.rank, query.world, complete_options(name, query.options), hosts});
  PRIDE_CHECK(!hosts.known() || method->has_two_levels(), name,
              " has no exchange in two levels: it cannot use hosts");
  auto buckets = make_buckets(layout, query.bucket_coords, query.world, method->alignment());
  return {std::move(method), std::move(buckets)};
}

// All that the bytes of a rank depend on: the pieces of its shards and where in a block they begin.
std::vector<std::size_t> shards_of(std::span<const Bucket> buckets, int rank,
                                   std::size_t alignment) {
  std::vector<std::size_t> numbers;
  for (const Bucket& bucket : buckets) {
    const Shard& shard = bucket.shards[static_cast<std::size_t>(rank)];
    numbers.insert(numbers.end(), {shard.size(), shard.pieces.size()});
    for (const Piece& piece : shard.pieces) {
      numbers.insert(numbers.end(), {piece.n(), piece.begin % alignment});
    }
  }
  return numbers;
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
  const auto [method, buckets] = made_for(name, layout, query);
  return method->cost(buckets, query.rank, query.step);
}

std::vector<BucketForm> exchange_forms(std::string_view name, const Layout& layout,
                                       const CostQuery& query) {
  const auto [method, buckets] = made_for(name, layout, query);
  const int rounds = method_info(name, query.world).rounds;
  std::vector<BucketForm> forms;
  for (const Bucket& bucket : buckets) {
    const ExchangeForm form = method->exchange_form(bucket);
    forms.push_back({std::string(form.name), form.rounds > 0 ? form.rounds : rounds});
  }
  return forms;
}

Cost largest_cost(std::string_view name, const Layout& layout, const CostQuery& query) {
  const auto [method, buckets] = made_for(name, layout, query);
  std::set<std::vector<std::size_t>> seen;
  Cost largest;
  const bool ask_all =
      (!method->cost_follows_shards() || query.ranks_per_host > 0) && query.world <= kMostAsked;
  for (int rank = 0; rank < query.world; ++rank) {
    // ranks whose shards look alike send alike: there are few kinds, and may be many ranks
    if (!ask_all && !seen.insert(shards_of(buckets, rank, method->alignment())).second) continue;
    const Cost cost = method->cost(buckets, rank, query.step);
    if (rank == 0 || cost.bytes() > largest.bytes()) largest = cost;
  }
  return largest;
}

}  // namespace pride
