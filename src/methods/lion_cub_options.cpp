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

constexpr const char *kSyncSchedule = "even", *kSyncDoubling = "16";

// Throws InvalidArgument if there is a schedule but nothing to synchronise.
void check_sync(const OptionValues& options) {
  for (const auto& [option, unset] :
       {std::pair{"sync_schedule", kSyncSchedule}, {"sync_doubling", kSyncDoubling}}) {
    const std::string& value = options.text(option);
    PRIDE_CHECK(options.text("sync") != "none" || value == unset, options.method(), ": option ",
                option, " = '", value, "' with sync = 'none': no momentum is synchronised");
  }
}

std::string lion_cub_host_only(const OptionValues& options) {
  const std::string quantiser = Quantiser::host_only(options);
  const ValueFormat format = value_format(options.method(), options.text("sync_format"));
  const bool levels = format.kind == ValueFormat::Kind::kLevels;
  if (!quantiser.empty() || levels || options.text("sync") == "none") return quantiser;
  return needs_host(options, "sync_format = fp32 or bf16", "choose a number of bits, or ");
}

MethodInfo lion_cub_info(int) {
  MethodInfo info;
  info.title = "Lion Cub";
  info.source = "Ishikawa et al. 2024, arXiv:2411.16462";
  // levels of 4 bits; and a momentum of 8 bits and its part of a scale, once in 8 steps
  info.bits_up = 4 + 8.25 / 8;
  info.bits_down = 1 + 8.25 / 8;
  info.growth = "none";
  info.on_device = true;
  info.default_lr = 1e-4;
  info.default_beta1 = 0.9;
  info.default_beta2 = 0.99;
  info.options = {
      {"bits", "4", "bits per level, 2 to 8; 1: signs, as dlion-vote"},
      {"sync", "all",
       "momenta that are averaged over the ranks: none, all, vectors (norms and biases), "
       "embeddings, first, last, or patterns of tensor names with *, separated by commas"},
      tie_option_info("a vote of 0"),
      {"scale", "l1",
       "magnitude that sets the levels: l0 (geometric mean), l1 (mean), l2 (root mean square) or "
       "max"},
      {"granularity", "tensor",
       "coordinates that share a scale: block (4096 coordinates) or tensor, which needs whole "
       "gradients, so the exchange does not overlap with backward"},
      {"rounding", "nearest", "rounding to levels: nearest or stochastic"},
      {"shared", "yes",
       "'yes': the ranks agree on the scales of tensors; 'no': each rank has its own"},
      {"feedback", "no", "'yes' adds the quantisation error to the next step (1 float of state)"},
      {.name = "route",
       .default_value = "auto",
       .help = "sharded, native (the transport's integer all-reduce), or auto (fewer bytes); the "
               "results are the same",
       .wire_only = true},
      {"sync_schedule", kSyncSchedule,
       "intervals of momentum synchronisation: even (each momentum is averaged once in sync_every "
       "steps) or exponential (they grow, as in 0/1 Adam)"},
      {"sync_every", "8", "with sync_schedule = even: steps per interval"},
      {"sync_doubling", kSyncDoubling,
       "with sync_schedule = exponential: intervals after which their length doubles, from 1 step"},
      {"sync_format", "8", "format of averaged momenta: fp32, bf16, or 2 to 8 bits"}};
  return info;
}

}  // namespace

extern const MethodEntry kLionCub = {"lion-cub",
                                     [](const MethodContext& ctx) -> std::unique_ptr<Method> {
                                       check_sync(ctx.options);
                                       return std::make_unique<LionCub>(ctx);
                                     },
                                     lion_cub_info, nullptr, lion_cub_host_only};

}  // namespace pride::methods
