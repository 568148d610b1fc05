// GPT-2 style language model: pre-LN blocks, learned positions, tied embeddings.
// SPDX-License-Identifier: Apache-2.0
// Source    Radford et al. 2019; parameter names and (in, out) weights as Hugging Face's GPT-2.
#pragma once

#include <memory>

#include "models/model.h"

namespace pride::app {

struct GptSize {
  std::int64_t layers = 4, heads = 4, width = 128;
  std::int64_t context = 128;     // longest input, in tokens
  std::int64_t vocabulary = 256;  // bytes
};

// Throws InvalidArgument on a size below 1 or a width that the heads do not divide.
std::unique_ptr<Model> make_gpt(const GptSize& size);

}  // namespace pride::app
