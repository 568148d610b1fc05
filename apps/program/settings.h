// Settings shared by commands: agreement of ranks, methods with options, nodes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pride/communicator.h"
#include "pride/nodes.h"

namespace pride::inline program {

using Settings = std::vector<std::pair<std::string, std::string>>;  // name, value as text

// Throws InvalidArgument on all ranks, naming the first setting that differs and the ranks that
// differ from rank 0, or the ranks that have settings of other names. Collective.
void check_same_settings(Communicator& comm, const Settings& settings);

// "lion", or with options "lion:dense=bf16", "lion-cub:bits=2:sync=none".
struct MethodChoice {
  std::string name;
  std::vector<std::string> options;  // "key=value"
};
MethodChoice parse_method(const std::string& text);

// The options of a choice, checked: throws InvalidArgument if there is no such method or option, or
// if an option is no key=value or given twice.
std::map<std::string, std::string> checked_options(const MethodChoice& choice);

// Makes the method of `text` for `world` ranks, with minimal parameters. Throws InvalidArgument if
// there is no such method, option or value, or if the method does not allow this number of ranks.
void check_method(const std::string& text, int world);

// Throws InvalidArgument on a text without a key or "=", and on a key that is given twice. `where`:
// the flag of these texts, for errors.
std::map<std::string, std::string> parse_method_options(const std::vector<std::string>& texts,
                                                        const std::string& where = "--method-opt");

inline constexpr const char* kHierarchicalHelp =
    "Exchange on the hierarchical route, so that fewer bytes leave a node: the ranks of a node add "
    "their signs, and nodes exchange counts. L: L ranks per node, in order; auto: by machine and "
    "network namespace. Only for dlion-*, signum-*, local-vote and local-muon; never changes a "
    "result";

// Empty, or the error of the flag's value, in the form of CLI11's checks.
std::string wrong_hierarchical(const std::string& value);

// Nodes of the ranks of `comm`; not known if `value` is empty. Collective.
// Throws InvalidArgument unless all nodes have equally many ranks.
Nodes nodes_of(Communicator& comm, const std::string& value);

// The number of earlier ranks on this rank's machine. Collective.
int local_rank(Communicator& comm);

// The same for `world` threads of one process: auto finds one node.
Nodes nodes_of_threads(int world, const std::string& value);

}  // namespace pride::inline program
