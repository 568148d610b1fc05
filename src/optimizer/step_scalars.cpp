// Checks and rounds hyper-parameters.
// SPDX-License-Identifier: Apache-2.0
#include "optimizer/step_scalars.h"

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/power.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

void check_beta(double beta, const char* name, int index) {
  PRIDE_CHECK(beta >= 0 && beta < 1, "group ", index, ": ", name, " = ", beta, " is not in [0, 1)");
}

// A finite double may round to an Inf float, which would go into every parameter.
void check_value(double value, const char* name, int index) {
  PRIDE_CHECK(value >= 0 && value <= std::numeric_limits<float>::max(), "group ", index, ": ", name,
              " = ", value, " is not a finite float >= 0");
}

// Without this check a value that the method does not use would be ignored silently.
void check_has(const std::optional<double>& value, double default_value, const MethodInfo& info,
               const char* name, int index) {
  PRIDE_CHECK(!value || default_value != 0, "group ", index, ": ", info.name, " has no ", name);
}

// A momentum of a method that has none of its own stands for its betas.
ParamGroup with_betas(ParamGroup group, const MethodInfo& info, int index) {
  if (!group.momentum || info.default_momentum != 0) return group;
  const bool one = info.default_beta1 != 0 && info.default_beta2 == 0;
  PRIDE_CHECK(one || info.nesterov_betas, "group ", index, ": ", info.name, " has no momentum",
              info.default_beta1 != 0 ? ": give betas" : "");
  PRIDE_CHECK(!group.beta1 && !group.beta2, "group ", index,
              ": both betas and momentum are given; ", "a momentum mu stands for ",
              one ? "beta1 = mu" : "betas (mu^2, mu)");
  const double mu = *std::exchange(group.momentum, {});
  check_beta(mu, "momentum", index);
  group.beta1 = one ? mu : mu * mu;
  if (!one) group.beta2 = mu;
  return group;
}

}  // namespace

void check_lr(double lr, double weight_decay, int index) {
  check_value(lr, "learning rate", index);
  check_value(lr * weight_decay, "learning rate times weight decay", index);
}

GroupValues complete_group(const ParamGroup& given, const MethodInfo& info, int index) {
  const ParamGroup group = with_betas(given, info, index);
  check_has(group.beta1, info.default_beta1, info, "beta1", index);
  check_has(group.beta2, info.default_beta2, info, "beta2", index);
  check_has(group.eps, info.default_eps, info, "eps", index);
  GroupValues v;
  v.cautious_decay = info.cautious_decay;
  v.lr = group.lr.value_or(info.default_lr);
  v.beta1 = group.beta1.value_or(info.default_beta1);
  v.beta2 = group.beta2.value_or(info.default_beta2);
  v.eps = group.eps.value_or(info.default_eps);
  v.weight_decay = group.weight_decay.value_or(info.default_weight_decay);
  check_beta(v.beta1, "beta1", index);
  check_beta(v.beta2, "beta2", index);
  check_value(v.eps, "eps", index);
  // a method with an eps divides by it where a gradient has always been zero
  PRIDE_CHECK(info.default_eps == 0 || static_cast<float>(v.eps) > 0, "group ", index,
              ": eps = ", v.eps, " is zero as a float");
  check_value(v.weight_decay, "weight decay", index);
  if (info.default_momentum != 0) {
    v.momentum = group.momentum.value_or(info.default_momentum);
    check_beta(*v.momentum, "momentum", index);
    // 1 as a float: no gradient enters it
    PRIDE_CHECK(static_cast<float>(*v.momentum) < 1, "group ", index, ": momentum = ", *v.momentum,
                " is 1 as a float");
  }
  check_lr(v.lr, v.weight_decay, index);
  return v;
}

ParamGroup settings_of(const GroupValues& v, const MethodInfo& info) {
  ParamGroup group{.lr = v.lr, .weight_decay = v.weight_decay, .momentum = v.momentum};
  if (info.default_beta1 != 0) group.beta1 = v.beta1;
  if (info.default_beta2 != 0) group.beta2 = v.beta2;
  if (info.default_eps != 0) group.eps = v.eps;
  return group;
}

ParamGroup with_defaults(const ParamGroup& group, const MethodInfo& info, int index) {
  return settings_of(complete_group(group, info, index), info);
}

StepScalars scalars_of(const GroupValues& v, std::int64_t step) {
  StepScalars s;
  s.lr = static_cast<float>(v.lr);
  const auto decay = static_cast<float>(1 - v.lr * v.weight_decay);
  s.decay = {decay, v.cautious_decay ? 1 : decay};
  s.weight_decay = static_cast<float>(v.weight_decay);
  s.beta1 = static_cast<float>(v.beta1);
  s.one_minus_beta1 = static_cast<float>(1 - v.beta1);
  s.beta2 = static_cast<float>(v.beta2);
  s.one_minus_beta2 = static_cast<float>(1 - v.beta2);
  s.eps = static_cast<float>(v.eps);
  if (const auto mu = v.momentum) {
    s.momentum = static_cast<float>(*mu);
    s.one_minus_momentum = static_cast<float>(1 - *mu);
    s.momentum2 = static_cast<float>(*mu * *mu);
    s.one_minus_momentum2 = static_cast<float>(1 - *mu * *mu);
  }
  if (v.eps == 0) return s;
  s.adam_step = static_cast<float>(v.lr / (1 - power(v.beta1, step + 1)));
  s.adam_sqrt_bias2 = static_cast<float>(std::sqrt(1 - power(v.beta2, step + 1)));
  return s;
}

std::uint64_t digest_of(std::span<const StepScalars> groups, std::span<const char> frozen) {
  Digest digest;
  for (const StepScalars& s : groups) {
    const auto add = [&](std::initializer_list<float> scalars) {
      for (const float f : scalars) digest.number(std::bit_cast<std::uint32_t>(f));
    };
    add({s.lr, s.decay.same, s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2});
    if (s.decay.opposite != s.decay.same) add({s.decay.opposite});
    if (s.eps != 0) add({s.eps, s.adam_step, s.adam_sqrt_bias2});
    if (s.one_minus_momentum != 0) {
      add({s.momentum, s.one_minus_momentum, s.momentum2, s.one_minus_momentum2});
    }
  }
  return frozen.empty() ? digest.value() : hash_bytes(std::as_bytes(frozen), digest.value());
}

}  // namespace pride
