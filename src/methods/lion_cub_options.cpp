// Options and defaults of lion-cub.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>

#include "methods/dlion.h"
#include "methods/lion_cub.h"
#include "methods/options.h"
#include "methods/registry.h"
#include "pride/error.h"

namespace pride::methods {
namespace {

constexpr const char *kSyncSchedule = "even", *kSyncDoubling = "16", *kSyncUntil = "0";

// Throws InvalidArgument if there is a schedule but nothing to synchronise.
void check_sync(const std::string& name, const MethodContext& ctx) {
  for (const auto& [option, unset] : {std::pair{"sync_schedule", kSyncSchedule},
                                      {"sync_doubling", kSyncDoubling},
                                      {"sync_until", kSyncUntil}}) {
    const std::string& value = ctx.options.at(option);
    PRIDE_CHECK(ctx.options.at("sync") != "none" || value == unset, name, ": option ", option,
                " = '", value, "' with sync = 'none': no momentum is synchronised");
  }
}

}  // namespace

MethodInfo lion_cub_base_info() {
  MethodInfo info;
  info.source = "Ishikawa et al. 2024, arXiv:2411.16462";
  info.bits_up = 4;
  info.bits_down = 1;
  info.growth = "none";
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  info.options = {
      tie_option_info("a vote of 0"),
      {"scale", "l1",
       "magnitude that sets the levels: l0 (geometric mean), l1 (mean), l2 (root mean square), max "
       "or quantile"},
      {"quantile", "0.99", "with scale = quantile: the share of magnitudes within the levels"},
      {"granularity", "tensor",
       "what shares a scale: block (of 4096 coordinates), tensor or row; tensor and row need whole "
       "gradients, so exchange does not overlap with backward"},
      {"rounding", "nearest", "to a level: nearest or stochastic"},
      {"shared", "yes",
       "'yes': the ranks agree on the scales of tensors or rows; 'no': each has its own"},
      {"feedback", "no", "'yes' adds what the levels left out to the next step (1 float of state)"},
      {.name = "route",
       .default_value = "auto",
       .help = "sharded, native (the transport's integer all-reduce), or auto (fewer bytes); the "
               "same results",
       .wire_only = true},
      {"sync_schedule", kSyncSchedule,
       "of synchronised momenta: even (each is averaged once in sync_every steps) or exponential "
       "(once in intervals that grow, as in 0/1 Adam)"},
      {"sync_every", "8", "with sync_schedule = even: steps of an interval"},
      {"sync_doubling", kSyncDoubling,
       "with sync_schedule = exponential: intervals until their length has doubled, from 1 step"},
      {"sync_until", kSyncUntil, "number of the last step that averages momenta; 0: all do"},
      {"sync_format", "8", "of averaged momenta: fp32, bf16, or bits from 2 to 8"},
      {"probe_every", "100", "steps between measurements on samples; 0: none"}};
  return info;
}

extern const MethodEntry kLionCub = {
    "lion-cub",
    [](const MethodContext& ctx) -> std::unique_ptr<Method> {
      check_sync("lion-cub", ctx);
      return std::make_unique<LionCub>("lion-cub", ctx);
    },
    [](int) {
      MethodInfo info = lion_cub_base_info();
      info.title = "Lion Cub";
      info.on_device = true;
      // a momentum of 8 bits and its part of a scale, once in 8 steps
      info.bits_up += 8.5 / 8;
      info.bits_down += 8.5 / 8;
      info.options.insert(info.options.begin(),
                          {{"bits", "4", "of a level, 2 to 8; 1: signs, as dlion-vote"},
                           {"sync", "all",
                            "momenta that are averaged over the ranks: none, all, vectors (norms "
                            "and biases), embeddings, first, last, or patterns of tensor names "
                            "with *, separated by commas"}});
      return info;
    }};

}  // namespace pride::methods
