// The methods with local steps, each a form of LocalSteps: local-vote, local-muon, local-ef, dsm,
// diloco.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "methods/local_steps.h"
#include "methods/registry.h"

namespace pride::methods {

extern const MethodEntry kDistributedLionVote, kDistributedMuonVote, kSignSgdEf, kLion, kSgdm;

namespace {

struct LocalForm {
  const char* name;
  const MethodEntry* outer;
  OuterStep kind;
  const char *title, *source;
  const char *outer_lr, *beta1, *beta2;  // defaults of options; null: the outer step has none
};

constexpr LocalForm kVoteForm = {"local-vote",
                                 &kDistributedLionVote,
                                 OuterStep::kSigns,
                                 "Local steps, then a vote on the drifts",
                                 "Local steps: McMahan et al. 2017, arXiv:1602.05629; the vote: "
                                 "Liu et al. 2024, arXiv:2404.00438, Algorithm 1 (MaVo), with "
                                 "drifts as gradients",
                                 "1",
                                 "0.95",
                                 "0.98"};
constexpr LocalForm kMuonForm = {"local-muon",
                                 &kDistributedMuonVote,
                                 OuterStep::kSigns,
                                 "Local steps, then a vote on the orthogonalised drifts",
                                 "As local-vote, with the vote of dlion-muon",
                                 "1",
                                 "0.95",
                                 "0.98"};
constexpr LocalForm kEfForm = {"local-ef",
                               &kSignSgdEf,
                               OuterStep::kMeans,
                               "Local steps, then scaled signs of the drifts with error feedback",
                               "Local steps: McMahan et al. 2017, arXiv:1602.05629; scaled signs: "
                               "Zheng et al. 2019, arXiv:1905.10936, with drifts as gradients",
                               "1",
                               nullptr,
                               nullptr};
constexpr LocalForm kDsmForm = {"dsm",
                                &kLion,
                                OuterStep::kSigns,
                                "Local steps, then sign momentum of the mean drift",
                                "Yu et al. 2024, arXiv:2411.17866, Algorithm 1",
                                "1",
                                "0.95",
                                "0.98"};
constexpr LocalForm kDiLoCoForm = {"diloco",
                                   &kSgdm,
                                   OuterStep::kMeans,
                                   "Local steps, then Nesterov's momentum of the mean drift",
                                   "Douillard et al. 2023, arXiv:2311.08105, Algorithm 1; FedAvg: "
                                   "McMahan et al. 2017, arXiv:1602.05629",
                                   "0.7",
                                   "0.9",
                                   nullptr};

std::vector<MethodOption> options_of(const LocalForm& form) {
  const bool signs = form.kind == OuterStep::kSigns;
  std::vector<MethodOption> options = {
      {"h", "8", "steps from one exchange to the next"},
      {"local", "adamw",
       "rule of the local steps: 'lion', 'adamw', 'sgdm' or 'muon'; it uses the group's rate and "
       "betas"},
      {"outer_lr", form.outer_lr,
       signs ? "rate of the outer step, as a multiple of the learning rate"
             : "rate of the outer step"}};
  if (form.beta1 != nullptr) {
    options.push_back({"outer_beta1", form.beta1,
                       form.beta2 != nullptr ? "share of the outer momentum in the direction"
                                             : "outer momentum"});
  }
  if (form.beta2 != nullptr) {
    options.push_back({"outer_beta2", form.beta2, "decay of the outer momentum per exchange"});
  }
  for (MethodOption& option : Fragments::options()) options.push_back(std::move(option));
  options.push_back({"drift_feedback", "0",
                     "fraction, 0 to 1, of the drift that an exchange did not apply; the next "
                     "exchange adds it (above 0: 1 float of state)"});
  for (MethodOption& option : local_muon_options()) options.push_back(std::move(option));
  return options;
}

MethodInfo info_of(const LocalForm& form, int world) {
  MethodInfo info = form.outer->info(world);
  info.title = form.title;
  info.source = form.source;
  std::vector<MethodOption> options = options_of(form);
  for (MethodOption& option : info.options) {
    if (std::ranges::count(options, option.name, &MethodOption::name) > 0) continue;
    if (option.name == "momentum_dtype") continue;  // would be only the outer step's
    if (option.name == "nesterov") {
      option = {"nesterov", "yes", "Nesterov's momentum in the outer step"};
    }
    options.push_back(std::move(option));
  }
  info.options = std::move(options);
  return info;
}

void set_period(const LocalForm& form, const OptionValues& options, MethodInfo& info) {
  if (form.outer->adjust != nullptr) form.outer->adjust(options, info);
  info.period = period_option(options);
  set_defaults(local_rule(options), info);
}

std::string local_host_only(const LocalForm& form, const OptionValues& options) {
  const std::string outer =
      form.outer->host_only != nullptr ? form.outer->host_only(options) : std::string();
  return outer.empty() ? Fragments::host_only(options) : outer;
}

template <const LocalForm& form>
constexpr MethodEntry entry_of() {
  return {form.name,
          [](const MethodContext& ctx) -> std::unique_ptr<Method> {
            return std::make_unique<LocalSteps>(ctx, form.outer->make(ctx), form.kind);
          },
          [](int world) { return info_of(form, world); },
          [](const OptionValues& options, MethodInfo& info) { set_period(form, options, info); },
          [](const OptionValues& options) { return local_host_only(form, options); }};
}

}  // namespace

extern const MethodEntry kLocalVote = entry_of<kVoteForm>(), kLocalMuon = entry_of<kMuonForm>(),
                         kLocalEf = entry_of<kEfForm>(), kDsm = entry_of<kDsmForm>(),
                         kDiLoCo = entry_of<kDiLoCoForm>();

}  // namespace pride::methods
