// SPDX-License-Identifier: Apache-2.0
#include "methods/local_rule.h"

#include <algorithm>
#include <iterator>

#include "methods/muon_rule.h"

namespace pride::methods {
namespace {

// By rule, in LocalRule's order.
struct Defaults {
  double lr, beta1, beta2, eps;
};
constexpr Defaults kDefaults[] = {
    {1e-4, 0.9, 0.99, 0}, {1e-3, 0.9, 0.999, 1e-8}, {0.1, 0.9, 0, 0}, {1e-3, 0.9, 0.999, 1e-8}};

// Of the method `muon`.
constexpr const char* kMuonOptions[] = {"not_matrices", "split"};

std::unique_ptr<rules::Rule> make_muon(const MethodContext& ctx, StateTable& state) {
  MethodContext own{ctx.layout, ctx.world, {{}, ctx.options.method()},
                    ctx.nodes,  ctx.space, ctx.orthogonalise};
  for (const MethodOption& option : MuonRule::options()) {
    own.options.set(option.name, option.default_value);
  }
  for (const char* name : kMuonOptions) own.options.set(name, ctx.options.text(name));
  return std::make_unique<MuonRule>(state, StateKind::kLocal, own);
}

}  // namespace

LocalRule local_rule(const OptionValues& options) {
  return static_cast<LocalRule>(options.word("local", {"lion", "adamw", "sgdm", "muon"}));
}

void set_defaults(LocalRule rule, MethodInfo& info) {
  const Defaults& defaults = kDefaults[static_cast<std::size_t>(rule)];
  info.default_lr = defaults.lr;
  info.default_beta1 = defaults.beta1;
  info.default_beta2 = defaults.beta2;
  info.default_eps = defaults.eps;
  info.default_momentum = rule == LocalRule::kMuon ? MuonRule::kMomentum : 0;
}

std::vector<MethodOption> local_muon_options() {
  std::vector<MethodOption> options = MuonRule::options();
  std::erase_if(options, [](const MethodOption& option) {
    return std::ranges::find(kMuonOptions, option.name) == std::end(kMuonOptions);
  });
  return options;
}

OptionMap muon_options(const OptionMap& all) {
  OptionMap options;
  for (const char* name : kMuonOptions) options[name] = all.at(name);
  return options;
}

std::unique_ptr<rules::Rule> make_local_rule(LocalRule rule, const MethodContext& ctx,
                                             StateTable& state) {
  switch (rule) {
    case LocalRule::kLion:
      return std::make_unique<rules::Lion>(state, StateKind::kLocal, ctx.space);
    case LocalRule::kAdamW:
      return std::make_unique<rules::AdamW>(state, StateKind::kLocal, ctx.space);
    case LocalRule::kMuon:
      return make_muon(ctx, state);
    case LocalRule::kSgdm:
      break;
  }
  return std::make_unique<rules::SgdMomentum>(state, StateKind::kLocal, ctx.space, false);
}

}  // namespace pride::methods

namespace pride {

std::optional<LocalRuleChoice> local_rule_of(std::string_view method, const OptionMap& given) {
  const OptionMap all = complete_options(method, given);
  const auto local = all.find("local");
  if (local == all.end()) return std::nullopt;
  LocalRuleChoice rule{local->second, {}};
  if (rule.method == "muon") rule.options = methods::muon_options(all);
  return rule;
}

}  // namespace pride
