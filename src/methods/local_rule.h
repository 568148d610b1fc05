// The rule of local steps, and the options of the rule itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "methods/method.h"
#include "rules/rule.h"

namespace pride::methods {

enum class LocalRule { kLion, kAdamW, kSgdm, kMuon };

// The option `local`. Throws InvalidArgument, naming the method, on another value.
LocalRule local_rule(const OptionValues& options);

void set_defaults(LocalRule rule, MethodInfo& info);

// Options that only the rule `muon` has, by their names in methods with local steps.
std::vector<MethodOption> local_muon_options();

// The same options by their names in the method `muon`, with the values that `all` has for them.
OptionMap muon_options(const OptionMap& all);

std::unique_ptr<rules::Rule> make_local_rule(LocalRule rule, const MethodContext& ctx,
                                             StateTable& state);

}  // namespace pride::methods
