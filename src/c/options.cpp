// Options of an optimizer in the C interface.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include "c/handles.h"

namespace pride::c {
namespace {

std::optional<double> value_of(double v) { return std::isnan(v) ? std::nullopt : std::optional(v); }

std::map<std::string, std::string> method_options(const char* const* names,
                                                  const char* const* values, std::uint64_t n) {
  PRIDE_CHECK(n == 0 || (names && values), n, " options at NULL");
  std::map<std::string, std::string> options;
  for (std::uint64_t i = 0; i < n; ++i) {
    options[&given(names[i], "the name of an option")] =
        &given(values[i], "the value of an option");
  }
  return options;
}

std::function<void(std::span<double>)> sum_of(pride_model_parallel_sum function, void* user) {
  if (function == nullptr) return nullptr;
  return [function, user](std::span<double> values) {
    char why[1024] = "";
    if (function(user, values.data(), values.size(), why, sizeof why) == 0) return;
    why[sizeof why - 1] = '\0';
    throw CommError(concat("model_parallel_sum: ", why));
  };
}

// The options of a caller with an older header, with the defaults of newer ones.
pride_options whole(const pride_options& given) {
  constexpr std::size_t kFirstSize = offsetof(pride_options, vote_weight);  // of version 1
  const std::size_t size = given.struct_size;
  PRIDE_CHECK(size >= kFirstSize, "pride_options: struct_size is ", size, ", must be ", kFirstSize,
              " or more: begin with pride_options_init()");
  pride_options all;
  pride_options_init(&all, sizeof all);
  std::memcpy(&all, &given, std::min(size, sizeof all));
  return all;
}

std::function<void()> before_apply_of(pride_before_apply function, void* user) {
  if (function == nullptr) return nullptr;
  return [function, user] {
    char why[1024] = "";
    if (function(user, why, sizeof why) == 0) return;
    why[sizeof why - 1] = '\0';
    throw CommError(why);
  };
}

}  // namespace

ParamGroup group_of(const pride_group& v) {
  return {.lr = value_of(v.lr),
          .beta1 = value_of(v.beta1),
          .beta2 = value_of(v.beta2),
          .eps = value_of(v.eps),
          .weight_decay = value_of(v.weight_decay),
          .momentum = value_of(v.momentum),
          .method = v.method == nullptr ? "" : v.method,
          .options = method_options(v.names, v.values, v.n_options)};
}

pride_group group_of(const ParamGroup& v) {
  return {.lr = v.lr.value_or(kNotSet),
          .beta1 = v.beta1.value_or(kNotSet),
          .beta2 = v.beta2.value_or(kNotSet),
          .eps = v.eps.value_or(kNotSet),
          .weight_decay = v.weight_decay.value_or(kNotSet),
          .momentum = v.momentum.value_or(kNotSet),
          .method = nullptr,
          .names = nullptr,
          .values = nullptr,
          .n_options = 0};
}

int virtual_workers_of(const pride_options& given) { return whole(given).virtual_workers; }

OptimizerOptions options_of(const pride_options& given_options, int world) {
  const pride_options o = whole(given_options);
  PRIDE_CHECK(o.n_groups == 0 || o.groups, o.n_groups, " groups at NULL");
  OptimizerOptions options;
  options.method = &given(o.method, "method");
  options.options = method_options(o.names, o.values, o.n_options);
  if (o.groups != nullptr) {
    options.groups.clear();
    for (std::uint64_t g = 0; g < o.n_groups; ++g) options.groups.push_back(group_of(o.groups[g]));
  }
  options.non_finite = o.skip_non_finite ? NonFinitePolicy::kSkip : NonFinitePolicy::kRaise;
  options.clip_global_norm = o.clip_global_norm;
  options.bucket_coords = o.bucket_coords;
  options.overlap = o.overlap != 0;
  options.exchange_threads = o.exchange_threads;
  options.seed = o.seed;
  options.vote_weight = o.vote_weight;
  if (o.device != nullptr) options.device = o.device->device;
  options.orthogonalise = orthogonalise_of(o.orthogonalise, o.orthogonalise_user);
  options.model_parallel_sum = sum_of(o.model_parallel_sum, o.model_parallel_sum_user);
  options.before_apply = before_apply_of(o.before_apply, o.before_apply_user);
  if (o.node_of_rank != nullptr) {
    if (o.virtual_workers > 0) world = o.virtual_workers;
    options.nodes = Nodes(std::span(o.node_of_rank, static_cast<std::size_t>(world)));
  }
  return options;
}

}  // namespace pride::c

void pride_options_init(pride_options* options, uint32_t struct_size) {
  if (options == nullptr) return;
  static const pride::OptimizerOptions defaults;
  const pride_options all = {.struct_size = struct_size,
                             .skip_non_finite = 0,
                             .method = "dlion-vote",
                             .names = nullptr,
                             .values = nullptr,
                             .n_options = 0,
                             .groups = nullptr,
                             .n_groups = 0,
                             .bucket_coords = defaults.bucket_coords,
                             .seed = defaults.seed,
                             .clip_global_norm = 0,
                             .overlap = 0,
                             .exchange_threads = defaults.exchange_threads,
                             .node_of_rank = nullptr,
                             .vote_weight = defaults.vote_weight,
                             .virtual_workers = 0,
                             .device = nullptr,
                             .orthogonalise = nullptr,
                             .orthogonalise_user = nullptr,
                             .model_parallel_sum = nullptr,
                             .model_parallel_sum_user = nullptr,
                             .before_apply = nullptr,
                             .before_apply_user = nullptr};
  std::memcpy(options, &all, std::min<std::size_t>(struct_size, sizeof all));
}
