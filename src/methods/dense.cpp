// AdamW, Lion and SGD with momentum on the mean gradient: the uncompressed methods.
// SPDX-License-Identifier: Apache-2.0
// Source    Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2 (G-AdamW); Chen et al. 2023,
//           arXiv:2302.06675, Program 1 (G-Lion); Polyak 1964 and Sutskever et al. 2013 (SGD).
// Cost      32 bits up and 32 bits down per coordinate (16 and 16 with dense = bf16; 8.25, 4.25 and
//           2.25 each way with int8, int4 and int2), plus frames.
// State     m: momentum; AdamW also v: second moment (n each) float32, equal on all ranks. Lion's
//           momentum_dtype = bfloat16 stores m in bfloat16: each write rounds to nearest.
// Deviates  weight decay is decoupled; a tensor without a gradient on any rank only decays.
#include "methods/dense.h"

#include "methods/encode_signs.h"
#include "methods/registry.h"

namespace pride::methods {
Dense dense_option(const OptionValues& options) {
  return static_cast<Dense>(
      options.word("dense", {"ordered", "native", "bf16", "int8", "int4", "int2"}));
}

std::string dense_host_only(const OptionValues& options) {
  if (dense_option(options) != Dense::kBf16) return "";
  return needs_host(options, "dense = bf16", "choose ordered or native, or ");
}

// A level takes its bits and a 64th of a bfloat16.
void set_dense_bits(const OptionValues& options, MethodInfo& info) {
  const Dense dense = dense_option(options);
  if (dense == Dense::kBf16) info.bits_up = info.bits_down = 16;
  if (const int bits = level_bits(dense); bits != 0) {
    info.bits_up = info.bits_down = bits + 16.0 / 64;
  }
}

MethodInfo dense_info(std::string title, std::string source) {
  MethodInfo info;
  info.title = std::move(title);
  info.source = std::move(source);
  info.bits_up = info.bits_down = 32;
  info.growth = "none";
  info.on_device = true;
  info.options = {
      {"dense", "ordered",
       "sum of gradients: 'ordered' adds in rank order, the same bits on every transport; 'native' "
       "is the transport's own all-reduce; 'bf16' sends bfloat16 and adds in float32 in rank "
       "order: half the bytes, the same bits on every transport; 'int8', 'int4' and 'int2' send "
       "levels of 8, 4 and 2 bits and a bfloat16 scale for each 64 of them"}};
  return info;
}

extern const MethodEntry kAdamW = {
    "adamw",
    [](const MethodContext& ctx) -> std::unique_ptr<Method> {
      return std::make_unique<DenseMethod<rules::AdamW>>(ctx, ctx.space);
    },
    [](int) {
      MethodInfo info = dense_info("AdamW on the mean gradient",
                                   "Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2 (on "
                                   "the mean gradient: G-AdamW)");
      info.default_lr = 1e-3;
      info.default_beta1 = 0.9;
      info.default_beta2 = 0.999;
      info.default_eps = 1e-8;
      return info;
    },
    set_dense_bits, dense_host_only};

extern const MethodEntry kLion = {
    "lion",
    [](const MethodContext& ctx) -> std::unique_ptr<Method> {
      return std::make_unique<DenseMethod<rules::Lion>>(ctx, ctx.space,
                                                        momentum_option(ctx.options));
    },
    [](int) {
      MethodInfo info = dense_info(
          "Lion on the mean gradient",
          "Chen et al. 2023, arXiv:2302.06675, Program 1 (on the mean gradient: G-Lion)");
      info.default_lr = 1e-4;
      info.default_beta1 = 0.9;
      info.default_beta2 = 0.99;
      info.options.push_back(momentum_option_info());
      return info;
    },
    set_dense_bits, dense_host_only};

extern const MethodEntry kSgdm = {
    "sgdm",
    [](const MethodContext& ctx) -> std::unique_ptr<Method> {
      return std::make_unique<DenseMethod<rules::SgdMomentum>>(ctx, ctx.space,
                                                               ctx.options.yes_no("nesterov"));
    },
    [](int) {
      MethodInfo info = dense_info("SGD with momentum on the mean gradient",
                                   "Polyak 1964; Sutskever et al. 2013, equations 1 to 4");
      info.default_lr = 0.1;
      info.default_beta1 = 0.9;
      info.options.push_back({"nesterov", "no", "'yes': Nesterov's momentum"});
      return info;
    },
    set_dense_bits, dense_host_only};

}  // namespace pride::methods
