// GPT-2 checkpoints in Hugging Face's layout: model.safetensors and, beside it, config.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/models/gpt.h"

namespace pride::train {

// The file of `path`: itself, or model.safetensors in it. Throws DataError if it is missing.
std::filesystem::path find_gpt2(const std::filesystem::path& path);

// The model's sizes, from the shapes of the file's tensors. Shapes do not show the number of heads:
// it is `heads`, otherwise config.json's. Throws DataError, naming tensor or key: not a GPT-2, or
// one whose config.json needs something that pride's model lacks; InvalidArgument if the number of
// heads is unknown.
GptSize gpt2_size(const std::filesystem::path& file, std::optional<std::int64_t> heads);

// Sets every parameter of `model`. Names may begin with "transformer."; the causal masks that old
// files hold are left out, and lm_head.weight must equal wte.weight. The model's context may be
// shorter than the file's: the first positions count. Throws DataError, naming the tensor, if one
// is missing, unknown or of another shape; `model` is then unchanged.
void load_gpt2(const std::filesystem::path& file, Model& model);

// Text of config.json for such a model, for transformers' GPT2LMHeadModel.
std::string gpt2_config(const GptSize& size);

}  // namespace pride::train
