// The methods and their costs in the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "c/handles.h"
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

}  // namespace

int pride_optimizer_cost(const pride_optimizer* optimizer, int64_t step, pride_cost* cost) {
  return guarded(
      [&] { given(cost, "cost") = cost_of(given(optimizer, "optimizer").optimizer->cost(step)); });
}

int pride_method_cost(const pride_options* options, const pride_layout* layout, int32_t world,
                      int32_t rank, int64_t step, pride_cost* cost) {
  return guarded([&] {
    PRIDE_CHECK(world >= 1, "a world of ", world, " ranks");
    const pride::OptimizerOptions all = options_of(given(options, "options"), world);
    const pride::CostQuery query{.options = all.options,
                                 .world = world,
                                 .rank = std::max(rank, 0),
                                 .step = step,
                                 .bucket_coords = all.bucket_coords,
                                 .ranks_per_node = all.nodes.per_node()};
    const pride::Layout& shape = given(layout, "layout").layout;
    given(cost, "cost") = cost_of(rank < 0 ? pride::largest_cost(all.method, shape, query)
                                           : pride::method_cost(all.method, shape, query));
  });
}

uint64_t pride_method_count(void) { return pride::method_names().size(); }

const char* pride_method_name(uint64_t index) {
  static const std::vector<std::string> names = pride::method_names();
  return index < names.size() ? names[index].c_str() : nullptr;
}

int pride_method_info(const char* name, int32_t world, pride_method* out) {
  return guarded([&] {
    thread_local pride::MethodInfo info;
    PRIDE_CHECK(given(out, "out").struct_size >= sizeof(pride_method),
                "pride_method: struct_size is ", out->struct_size, ", must be ",
                sizeof(pride_method), " or more");
    PRIDE_CHECK(world >= 1, "a world of ", world, " ranks");
    info = pride::method_info(&given(name, "name"), world);
    *out = {.struct_size = out->struct_size,
            .state_floats = info.state_floats,
            .name = info.name.c_str(),
            .title = info.title.c_str(),
            .source = info.source.c_str(),
            .growth = info.growth.c_str(),
            .bits_up = info.bits_up,
            .bits_down = info.bits_down,
            .exact_cost = info.exact_cost,
            .max_world = info.max_world,
            .defaults = {info.default_lr, info.default_beta1, info.default_beta2, info.default_eps,
                         info.default_weight_decay},
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
