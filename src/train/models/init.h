// Initial values from pride's own counter-based stream: the same on every rank and every machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "pride/train/model.h"

namespace pride::train {

// FNV-1a over the name: the key of a parameter's stream.
std::uint64_t name_hash(std::string_view name);

// Draws by Box-Muller in double, rounded once to float.
void fill_initial(std::uint64_t seed, std::string_view name, Init init, std::span<float> values);

}  // namespace pride::train
