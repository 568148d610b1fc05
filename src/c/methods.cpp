// The methods and their costs in the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "c/handles.h"
#include "pride/plan.h"
#include "pride/registry.h"

using namespace pride::c;

namespace {

pride_cost cost_of(const pride::Cost& cost) {
  return {.bytes_up = cost.bytes_up,
          .bytes_down = cost.bytes_down,
          .bytes_local = cost.bytes_local,
          .exact = cost.exact,
          .bound = cost.bound};
}

// Options of a function about one method, which groups may not replace.
pride::OptimizerOptions options_for_one(const pride_options* options, int world) {
  pride::OptimizerOptions all = options_of(given(options, "options"), world);
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    PRIDE_CHECK(all.groups[g].method.empty(), "options: group ", g, " has the method ",
                all.groups[g].method, ", but this function is about one method");
  }
  return all;
}

void write_cost(const pride_options* options, const pride_layout* layout, int32_t rank,
                const int32_t* vote_weights, pride::CostQuery query, pride_cost* cost) {
  PRIDE_CHECK(query.world >= 1, "a world of ", query.world, " ranks");
  const pride::OptimizerOptions all = options_for_one(options, query.world);
  query.options = all.options;
  query.rank = std::max(rank, 0);
  query.bucket_coords = all.bucket_coords;
  query.ranks_per_node = all.nodes.per_node();
  if (vote_weights != nullptr) query.vote_weights.assign(vote_weights, vote_weights + query.world);
  const pride::Layout& shape = given(layout, "layout").layout;
  given(cost, "cost") = cost_of(rank < 0 ? pride::largest_cost(all.method, shape, query)
                                         : pride::method_cost(all.method, shape, query));
}

pride::PlanFacts facts_of(const pride_plan_facts& given_facts) {
  constexpr std::size_t kFirstSize = offsetof(pride_plan_facts, device_bytes_per_s);
  const std::size_t size = given_facts.struct_size;
  PRIDE_CHECK(size >= kFirstSize, "pride_plan_facts: struct_size is ", size, ", must be ",
              kFirstSize, " or more");
  pride_plan_facts f{};
  std::memcpy(&f, &given_facts, std::min(size, sizeof f));
  const bool positive = f.params >= 1 && f.compute_s >= 0 && f.bytes_per_s > 0 &&
                        f.latency_s >= 0 && f.message_s >= 0 && f.cores > 0;
  PRIDE_CHECK(positive && f.world >= 1 && f.exchange_threads >= 1,
              "plan: params, world, bytes_per_s, cores and exchange_threads must be above 0, "
              "times 0 or more");
  const double memory = f.device_bytes_per_s, link = f.device_host_bytes_per_s,
               operations = f.device_operations_per_s;
  const bool on_host = memory == 0 && link == 0 && operations == 0;
  PRIDE_CHECK(on_host || (memory > 0 && link > 0 && operations >= 0),
              "plan: device_bytes_per_s is ", memory, ", device_host_bytes_per_s ", link,
              ", device_operations_per_s ", operations,
              ": give the first two above 0, or all as 0 for methods on the host");
  return {
      .world = f.world,
      .network = {.latency_s = f.latency_s, .message_s = f.message_s, .bytes_per_s = f.bytes_per_s},
      .params = f.params,
      .compute_s = f.compute_s,
      .cores = f.cores,
      .exchange_threads = f.exchange_threads,
      .device = {.bytes_per_s = memory, .host_bytes_per_s = link, .operations_per_s = operations}};
}

}  // namespace

int pride_optimizer_cost(const pride_optimizer* optimizer, int64_t step, pride_cost* cost) {
  return guarded(
      [&] { given(cost, "cost") = cost_of(given(optimizer, "optimizer").replica->cost(step)); });
}

int pride_optimizer_mean_cost(const pride_optimizer* optimizer, int64_t step, pride_cost* cost) {
  return guarded([&] {
    given(cost, "cost") = cost_of(given(optimizer, "optimizer").replica->mean_cost(step));
  });
}

int pride_optimizer_section(const pride_optimizer* optimizer, int32_t group, int64_t step,
                            pride_section* out) {
  thread_local std::string method, options;
  return guarded([&] {
    PRIDE_CHECK(given(out, "section").struct_size >= sizeof *out, "pride_section: struct_size is ",
                out->struct_size, ", must be ", sizeof *out, " or more");
    const auto sections = unlocked(optimizer).sections(step);
    const auto found = std::ranges::find_if(sections, [&](const pride::SectionReport& section) {
      return std::ranges::count(section.groups, group) > 0;
    });
    PRIDE_CHECK(found != sections.end(), "optimizer: there is no group ", group);
    method = found->method;
    options.clear();
    for (const auto& [name, value] : found->options) {
      options += pride::concat(options.empty() ? "" : " ", name, "=", value);
    }
    *out = {.struct_size = out->struct_size,
            .index = static_cast<int32_t>(found - sections.begin()),
            .method = method.c_str(),
            .options = options.c_str(),
            .n_coords = found->n_coords,
            .state = found->state,
            .cost = cost_of(found->cost),
            .mean_cost = cost_of(found->mean_cost),
            .bytes_sent = found->bytes_sent,
            .bytes_received = found->bytes_received,
            .messages_sent = found->messages_sent};
  });
}

int pride_method_why_host_only(const pride_options* options, const char** why) {
  return guarded([&] {
    thread_local std::string text;
    const pride::OptimizerOptions all = options_for_one(options, 1);
    text = pride::why_host_only(all.method, all.options);
    given(why, "why") = text.c_str();
  });
}

int pride_method_cost(const pride_options* options, const pride_layout* layout, int32_t world,
                      int32_t rank, int64_t step, pride_cost* cost) {
  return pride_method_weighted_cost(options, layout, world, rank, step, nullptr, cost);
}

int pride_method_weighted_cost(const pride_options* options, const pride_layout* layout,
                               int32_t world, int32_t rank, int64_t step,
                               const int32_t* vote_weights, pride_cost* cost) {
  return guarded([&] {
    write_cost(options, layout, rank, vote_weights, {.world = world, .step = step}, cost);
  });
}

int pride_method_mean_cost(const pride_options* options, const pride_layout* layout, int32_t world,
                           int32_t rank, int64_t step, const int32_t* vote_weights,
                           pride_cost* cost) {
  return guarded([&] {
    write_cost(options, layout, rank, vote_weights, {.world = world, .step = step, .mean = true},
               cost);
  });
}

uint64_t pride_method_count(void) { return pride::method_names().size(); }

const char* pride_method_name(uint64_t index) {
  static const std::vector<std::string> names = pride::method_names();
  return index < names.size() ? names[index].c_str() : nullptr;
}

int pride_method_info(const pride_options* options, int32_t world, pride_method* out) {
  return guarded([&] {
    thread_local pride::MethodInfo info;
    PRIDE_CHECK(given(out, "out").struct_size >= sizeof(pride_method),
                "pride_method: struct_size is ", out->struct_size, ", must be ",
                sizeof(pride_method), " or more");
    PRIDE_CHECK(world >= 1, "a world of ", world, " ranks");
    const pride::OptimizerOptions all = options_for_one(options, world);
    info = pride::method_info(all.method, world, all.options);
    *out = {.struct_size = out->struct_size,
            .state_floats =
                pride::state_of(all.method, pride::Layout({{"w", {1}}}), all.options).floats,
            .name = info.name.c_str(),
            .title = info.title.c_str(),
            .source = info.source.c_str(),
            .growth = info.growth.c_str(),
            .bits_up = info.bits_up,
            .bits_down = info.bits_down,
            .exact_cost = info.exact_cost,
            .max_world = info.max_world,
            .defaults = group_of(pride::ParamGroup{.lr = info.default_lr,
                                                   .beta1 = info.default_beta1,
                                                   .beta2 = info.default_beta2,
                                                   .eps = info.default_eps,
                                                   .weight_decay = info.default_weight_decay,
                                                   .momentum = info.default_momentum}),
            .n_options = info.options.size()};
  });
}

int pride_method_option(const char* name, uint64_t index, const char** option, const char** value,
                        const char** help) {
  return guarded([&] {
    thread_local pride::MethodOption found;
    const auto options = pride::method_info(&given(name, "name"), 1).options;
    PRIDE_CHECK(index < options.size(), "option ", index, " of ", options.size());
    found = options[index];
    given(option, "option") = found.name.c_str();
    given(value, "value") = found.default_value.c_str();
    given(help, "help") = found.help.c_str();
  });
}

int pride_method_operations(const pride_options* options, const pride_layout* layout, int32_t world,
                            double* operations) {
  return guarded([&] {
    PRIDE_CHECK(world >= 1, "a world of ", world, " ranks");
    const pride::OptimizerOptions all = options_for_one(options, world);
    given(operations, "operations") = pride::matrix_operations(
        all.method, given(layout, "layout").layout, {.options = all.options, .world = world});
  });
}

int pride_method_matrices(const pride_options* options, const pride_layout* layout, int32_t* forms,
                          const char** text) {
  return guarded([&] {
    const pride::OptimizerOptions all = options_for_one(options, 1);
    given(text, "text") = nullptr;
    thread_local pride::Matrices made;
    made = pride::matrices_of(all.method, given(layout, "layout").layout, all.options);
    *text = made.text.c_str();
    for (std::size_t i = 0; forms != nullptr && i < made.forms.size(); ++i) {
      forms[i] = static_cast<int32_t>(made.forms[i]);
    }
  });
}

int pride_plan(pride_comm* comm, const pride_options* options, const pride_plan_facts* facts,
               pride_plan_row* row) {
  return guarded([&] {
    PRIDE_CHECK(given(row, "row").struct_size >= sizeof(pride_plan_row),
                "pride_plan_row: struct_size is ", row->struct_size, ", must be ",
                sizeof(pride_plan_row), " or more");
    pride::PlanFacts known = facts_of(given(facts, "facts"));
    pride::Communicator& world = *given(comm, "comm").comm;
    const pride::OptimizerOptions all = options_for_one(options, known.world);
    thread_local pride::PlanRow planned;
    planned = pride::plan_step(world, {all.method, all.options}, known);
    *row = {.struct_size = row->struct_size,
            .buckets = planned.buckets,
            .bytes = planned.method.bytes,
            .in_order_s = planned.in_order.step_s,
            .overlapped_s = planned.overlapped.step_s,
            .network_s = planned.in_order.network_s,
            .arithmetic_s = planned.in_order.arithmetic_s,
            .route = planned.route.c_str(),
            .bottleneck = planned.overlapped.bottleneck.c_str()};
  });
}
