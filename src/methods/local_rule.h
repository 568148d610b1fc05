// The rule of local steps, and those of its options that are its own.
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

// The option `local`. Throws InvalidArgument, naming the method, if it is none of them.
LocalRule local_rule(const std::string& name, const MethodContext& ctx);

void set_defaults(LocalRule rule, MethodInfo& info);

// Options that the rule `muon` alone has, by the names that methods with local steps give them.
std::vector<MethodOption> local_muon_options();

// The same of the method `muon`, from all options of a method with local steps.
std::map<std::string, std::string> muon_options(const std::map<std::string, std::string>& all);

std::unique_ptr<rules::Rule> make_local_rule(LocalRule rule, const std::string& name,
                                             const MethodContext& ctx, StateTable& state);

}  // namespace pride::methods
