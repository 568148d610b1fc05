// Shared by the built-in models: check of memory, affine maps, self-attention, initial values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "pride/train/model.h"

namespace pride::train {

// Throws InvalidArgument if the parameters alone, in float32, need more memory than the machine
// has: those of `layers` blocks of attention and a fourfold MLP, and `others`.
void check_memory(const char* model, std::int64_t layers, std::int64_t width, double others);

// A weight matrix and its bias.
struct Affine {
  at::Tensor weight, bias;
};

// softmax(q k^T / sqrt(d) + mask) v over (batch * heads, length, d). An undefined mask is none.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& mask);

// x: (batch, length, 3 * width), q, k and v beside each other -> the attended (batch, length,
// width).
at::Tensor self_attention(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& mask);

// Rows of the registry.
ModelInfo gpt_small_info();
ModelInfo gpt2_info();
std::vector<ModelInfo> vit_infos();

// Draws by Box-Muller in double, rounded once to float.
void fill_initial(std::uint64_t seed, std::string_view name, Init init, std::span<float> values);

}  // namespace pride::train
