// The methods by name: one line each.
// SPDX-License-Identifier: Apache-2.0
#include "methods/registry.h"

#include <algorithm>

#include "codecs/frame.h"
#include "methods/orthogonal_blend.h"
#include "methods/vote_weights.h"
#include "pride/error.h"
#include "rules/orthogonalise.h"

namespace pride {

// defined in the methods' own files
namespace methods {
extern const MethodEntry kAdamW, kSgdm, kLion, kMuon, kDistributedLionVote, kDistributedLionAverage,
    kDistributedMuonVote, kDistributedMuonAverage, kSignumVote, kSignumAverage, kLionCub, kTernGrad,
    kDgc, kGradDrop, kSignSgdEf, kOneBitAdam, kLocalVote, kLocalMuon, kLocalEf, kDsm, kDiLoCo,
    kTurnMuon;
}  // namespace methods

namespace {

constexpr const char* kCautiousDecay = "cautious_decay";

constexpr const MethodEntry* kMethods[] = {
    &methods::kAdamW,
    &methods::kSgdm,
    &methods::kLion,
#if PRIDE_HAVE_BLAS
    &methods::kMuon,
#endif
    &methods::kDistributedLionVote,
    &methods::kDistributedLionAverage,
#if PRIDE_HAVE_BLAS
    &methods::kDistributedMuonVote,
    &methods::kDistributedMuonAverage,
    &methods::kTurnMuon,
#endif
    &methods::kSignumVote,
    &methods::kSignumAverage,
    &methods::kLionCub,
    &methods::kTernGrad,
    &methods::kDgc,
    &methods::kGradDrop,
    &methods::kSignSgdEf,
    &methods::kOneBitAdam,
    &methods::kLocalVote,
#if PRIDE_HAVE_BLAS
    &methods::kLocalMuon,
#endif
    &methods::kLocalEf,
    &methods::kDsm,
    &methods::kDiLoCo,
};

const MethodEntry& find(std::string_view name) {
  std::string known;
  for (const MethodEntry* entry : kMethods) {
    if (entry->name == name) return *entry;
    known += concat(known.empty() ? "" : ", ", entry->name);
  }
  const bool needs_blas = !rules::has_blas() && name.find("muon") != std::string_view::npos;
  throw InvalidArgument(
      concat("unknown method '", name, "'",
             needs_blas ? " in this build, which has no CBLAS (libopenblas-dev)" : "",
             "; methods: ", known));
}

// Facts with default options, and the options that methods share.
MethodInfo declared(const MethodEntry& entry, int world) {
  MethodInfo info = entry.info(world);
  // Local steps decay once in an exchange, for steps that have no common sign. With `turns` and
  // with a `ratio` most coordinates do not move in a step, but decay.
  const bool each_step_moves = std::ranges::none_of(info.options, [](const MethodOption& option) {
    return option.name == "local" || option.name == "turns" || option.name == "ratio";
  });
  if (each_step_moves) {
    info.options.push_back(
        {kCautiousDecay, "no",
         "'yes': a parameter decays only where its step is 0 or has its sign (arXiv:2510.12402)"});
  }
  return info;
}

// A method without state, and its buckets.
struct Made {
  Made(std::string_view name, const Layout& layout, const CostQuery& query) {
    PRIDE_CHECK(query.world >= 1 && query.world <= kMaxWorld, "method_cost: world size ",
                query.world, ", must be from 1 to ", kMaxWorld);
    PRIDE_CHECK(query.rank >= 0 && query.rank < query.world, "method_cost: rank ", query.rank,
                ", must be from 0 to ", query.world - 1);
    if (query.ranks_per_node > 0) nodes = Nodes::of_size(query.world, query.ranks_per_node);
    shared.step = query.step;
    shared.voters = query.world;
    const std::size_t n_weights = query.vote_weights.size();
    PRIDE_CHECK(n_weights == 0 || n_weights == static_cast<std::size_t>(query.world),
                "method_cost: ", n_weights, " vote weights given for ", query.world, " ranks");
    method = make_method(name, {layout, query.world, complete_options(name, query.options), nodes});
    const Protocol protocol = method->protocol(shared);
    PRIDE_CHECK(!nodes.known() || protocol.hierarchical,
                "method_cost: ranks_per_node = ", query.ranks_per_node, ": ", name,
                " has no hierarchical route");
    if (n_weights > 0) {
      const std::vector<std::int64_t> given(query.vote_weights.begin(), query.vote_weights.end());
      weights = vote_weights(name, protocol, nodes, given);
    }
    shared.weights = weights;
    buckets =
        make_buckets(layout, query.bucket_coords, query.world, protocol.alignment, protocol.cuts);
  }

  Made(const Made&) = delete;  // `shared` points at `weights`
  Made& operator=(const Made&) = delete;

  Nodes nodes;
  std::vector<int> weights;
  SharedContext shared;
  std::unique_ptr<Method> method;
  std::vector<Bucket> buckets;
};

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodEntry* entry : kMethods) names.emplace_back(entry->name);
  return names;
}

std::string methods_on_devices() {
  std::string names;
  for (const MethodEntry* entry : kMethods) {
    if (entry->info(1).on_device) names += concat(names.empty() ? "" : ", ", entry->name);
  }
  return names;
}

MethodInfo method_info(std::string_view name, int world, const OptionMap& options) {
  PRIDE_CHECK(world >= 1, "method_info: world size ", world, ", must be 1 or more");
  const MethodEntry& entry = find(name);
  MethodInfo info = declared(entry, world);
  info.name = entry.name;
  const OptionValues all = {complete_options(name, options), info.name};
  if (entry.adjust != nullptr) entry.adjust(all, info);
  info.cautious_decay = all.has(kCautiousDecay) && all.yes_no(kCautiousDecay);
  if (info.link_bits_up == 0) info.link_bits_up = info.bits_up;
  if (info.link_bits_down == 0) info.link_bits_down = info.bits_down;
  info.bits_up /= static_cast<double>(info.period);
  info.bits_down /= static_cast<double>(info.period);
  return info;
}

MethodState state_of(std::string_view name, const Layout& layout, const OptionMap& options) {
  const auto method = make_method(name, {layout, 1, complete_options(name, options)});
  return {static_cast<int>(method->state().n_buffers()),
          static_cast<double>(method->state().bytes_per_coord())};
}

std::int64_t lost_steps(std::string_view name, const Layout& layout, const OptionMap& options,
                        std::int64_t steps) {
  const auto method = make_method(name, {layout, 1, complete_options(name, options)});
  const MethodFacts& facts = method->facts();
  std::int64_t lost = 0;
  for (const std::int64_t s : facts.exchanging_steps) {
    lost = std::max(lost, (steps - 1 - s + facts.period) % facts.period);
  }
  return std::min(lost, steps);
}

std::string why_host_only(std::string_view name, const OptionMap& options) {
  const MethodEntry& entry = find(name);
  const OptionValues all = {complete_options(name, options), std::string(name)};
  if (!entry.info(1).on_device) return concat(name, " has no kernels for devices");
  return entry.host_only != nullptr ? entry.host_only(all) : "";
}

OptionMap complete_options(std::string_view method, const OptionMap& given) {
  OptionMap options;
  std::string known;
  for (const MethodOption& option : declared(find(method), 1).options) {
    options[option.name] = option.default_value;
    known += concat(known.empty() ? "" : ", ", option.name);
  }
  for (const auto& [name, value] : given) {
    PRIDE_CHECK(options.contains(name), method, ": no option '", name, "'; ",
                known.empty() ? "it has none" : "options: " + known);
    options[name] = value;
  }
  return options;
}

std::string methods_with(bool (*property)(const Protocol&)) {
  std::string names;
  const Layout layout({{"w", {1}}});
  for (const std::string& name : method_names()) {
    const auto method = make_method(name, {layout, 1, complete_options(name, {})});
    if (property(method->protocol({}))) names += concat(names.empty() ? "" : ", ", name);
  }
  return names;
}

std::unique_ptr<Method> make_method(std::string_view name, const MethodContext& ctx) {
  MethodContext named = ctx;
  named.options = {ctx.options.values(), std::string(name)};
  if (!ctx.space.is_host()) {
    const std::string why = why_host_only(name, ctx.options.values());
    PRIDE_CHECK(why.empty(), why);
  }
  return find(name).make(named);
}

namespace {

std::vector<Cost> costs_of(std::string_view name, const Layout& layout, const CostQuery& query) {
  const Made made(name, layout, query);
  return (query.mean ? mean_costs : step_costs)(*made.method, made.buckets, made.shared,
                                                made.nodes);
}

}  // namespace

Cost method_cost(std::string_view name, const Layout& layout, const CostQuery& query) {
  return costs_of(name, layout, query)[static_cast<std::size_t>(query.rank)];
}

Cost largest_cost(std::string_view name, const Layout& layout, const CostQuery& query) {
  return std::ranges::max(costs_of(name, layout, query), {}, &Cost::bytes);
}

double matrix_operations(std::string_view name, const Layout& layout, const CostQuery& query) {
  return Made(name, layout, query).method->facts().matrix_operations;
}

Matrices matrices_of(std::string_view name, const Layout& layout, const OptionMap& options) {
  const auto all = complete_options(name, options);
  const std::string method(name);
  Matrices made{.forms = make_method(name, {layout, 1, all})->facts().matrices, .text = {}};
  if (made.forms.empty()) return made;
  methods::check_words(method, all, layout);
  made.text = methods::text_of(method, layout, all);
  return made;
}

std::vector<BucketRoute> bucket_routes(std::string_view name, const Layout& layout,
                                       const CostQuery& query) {
  Made made(name, layout, query);
  made.shared.step = exchanging_steps(*made.method, made.shared.step).back();
  std::vector<BucketRoute> routes;
  const auto before = made.method->protocol(made.shared).preliminary;
  for (const Bucket& bucket : made.buckets) {
    const auto parts = parts_in_period(*made.method, bucket, made.shared);
    routes.push_back({std::string(route_name(main_route(parts))), before ? phases_of(*before) : 0});
    for (const Part& part : parts) routes.back().phases += phases_of(part);
    if (query.world == 1) routes.back().phases = 0;
  }
  return routes;
}

}  // namespace pride
