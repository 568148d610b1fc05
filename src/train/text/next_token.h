// Choosing the next token from a model's logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "pride/random_bits.h"

namespace pride::train {

struct SampleOptions {
  double temperature = 1;  // 0: the likeliest token
  std::size_t top_k = 0;   // of the likeliest tokens only; 0: of all
  double top_p = 1;        // of the fewest likeliest that have this probability together
};

// Throws InvalidArgument, naming the flag.
void check(const SampleOptions& options);

// An index of `logits`, drawn from softmax(logits / temperature) after top_k, then top_p. Of equal
// logits the lower index is the likelier. Takes one 64-bit word of `bits`, or none at temperature
// 0. Throws InvalidArgument if there is no logit, or one is NaN or +Inf.
std::size_t next_token(std::span<const float> logits, const SampleOptions& options,
                       PhiloxStream& bits);

}  // namespace pride::train
