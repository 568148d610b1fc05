// The methods of this build, by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pride/cost.h"
#include "pride/layout.h"

namespace pride {

using OptionMap = std::map<std::string, std::string>;  // values by name

struct MethodOption {
  std::string name, default_value, help;
  bool wire_only = false;  // changes no result: a saved state may be loaded with another value
};

struct MethodInfo {
  std::string name;    // "dlion-vote"
  std::string title;   // "Distributed Lion, majority vote"
  std::string source;  // paper and equation
  double bits_up = 0;  // per coordinate, of one worker, at the given world size (the paper's count)
  double bits_down = 0;
  bool exact_cost = true;   // false: with default options the bytes depend on data or transport
  std::int64_t period = 1;  // steps after which exchanges repeat; bits are means over them
  int max_world = 65535;    // larger worlds are refused
  std::string growth;       // growth with N of the bytes that a rank sends: "none", "log N", "N"
  bool on_device = false;   // runs on tensors in a device's memory; other methods need host tensors
  // On a device: bits per coordinate of an exchange that are copied to the host's memory, and from
  // it. A method that packs on the host copies more than it sends.
  double link_bits_up = 0, link_bits_down = 0;
  // 0 for a beta, eps or momentum: the method has none, and refuses a value.
  double default_lr = 0, default_beta1 = 0, default_beta2 = 0, default_eps = 0,
         default_weight_decay = 0, default_momentum = 0;
  // A method without a momentum of its own takes one for its betas: mu for its only beta, or with
  // this (mu^2, mu), Nesterov's.
  bool nesterov_betas = false;
  bool cautious_decay = false;  // the option of this name
  std::vector<MethodOption> options;
};

std::vector<std::string> method_names();
std::string methods_on_devices();  // separated by commas

// Throws InvalidArgument, listing the names, on an unknown name or option, and on a wrong value of
// an option that changes MethodInfo. REQUIRES: world >= 1.
MethodInfo method_info(std::string_view name, int world, const OptionMap& options = {});

// All options of the method: the given values, and defaults. Throws InvalidArgument on an unknown
// name.
OptionMap complete_options(std::string_view method, const OptionMap& given);

// For a method with local steps: the rule by which a worker changes its own parameters, as the name
// and the options of a method. None for other methods. Throws as complete_options().
struct LocalRuleChoice {
  std::string method;
  OptionMap options;
};
std::optional<LocalRuleChoice> local_rule_of(std::string_view method, const OptionMap& given);

// State of a method per coordinate.
struct MethodState {
  int floats = 0;    // some may be bfloat16
  double bytes = 0;  // without the state of servers
};

// `layout`: of the whole model. Throws InvalidArgument on an unknown name, option or value.
MethodState state_of(std::string_view name, const Layout& layout, const OptionMap& options = {});

// The number of last steps, in a run of `steps` steps, that no exchange follows, so the common
// parameters lack them. With fragments, the largest such number of a fragment. Throws as
// state_of().
std::int64_t lost_steps(std::string_view name, const Layout& layout, const OptionMap& options,
                        std::int64_t steps);

// The reason why the method with these options cannot run on a device; empty: it can. Throws
// InvalidArgument as method_info() does.
std::string why_host_only(std::string_view name, const OptionMap& options = {});

struct CostQuery {
  OptionMap options = {};  // the method's own; others have their defaults
  int world = 4, rank = 0;
  std::int64_t step = 0;  // a method may begin with dense steps
  bool mean = false;      // mean over the MethodInfo::period that `step` is in, rounded up
  std::size_t bucket_coords = std::size_t{1} << 20;
  int ranks_per_node = 0;              // Nodes::of_size(); 0: nodes are not known
  std::vector<int> vote_weights = {};  // OptimizerOptions::vote_weight of each rank; empty: equal
};

// Cost of a step of the method for rank `rank`, equal to Optimizer::cost(). Throws InvalidArgument
// on an unknown method, option or value, on a rank outside the world, and on nodes or vote weights
// that the method cannot use.
Cost method_cost(std::string_view name, const Layout& layout, const CostQuery& query);

// The same for the rank that sends most; query.rank is ignored.
Cost largest_cost(std::string_view name, const Layout& layout, const CostQuery& query);

// Multiplications and additions of a rank per step on whole matrices (Newton-Schulz), which also
// grow with the matrices' sides. 0 for all other methods. Throws as method_cost().
double matrix_operations(std::string_view name, const Layout& layout, const CostQuery& query);

// What a method that orthogonalises matrices makes of each tensor. Other methods: all empty.
struct Matrices {
  std::vector<MatrixForm> forms;
  std::string text;  // one line, e.g. for a log
};

// `layout`: of the whole model. Throws InvalidArgument as method_cost(), naming tensors that are
// AsMatrix::kUnnamed, and words of the options `not_matrices` and `split` that no name holds.
Matrices matrices_of(std::string_view name, const Layout& layout, const OptionMap& options);

// The exchange of a bucket: the route of its gradients or votes ("sharded", "one-shot",
// "hierarchical" or "native"), and the number of sequential messages.
struct BucketRoute {
  std::string name;
  int phases = 2;
};

// The exchange of each bucket in step query.step, equal on all ranks. If that step does not
// exchange, the next one that does.
std::vector<BucketRoute> bucket_routes(std::string_view name, const Layout& layout,
                                       const CostQuery& query);

}  // namespace pride
