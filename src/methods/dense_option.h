// The option that the uncompressed methods share: who adds up the gradients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "exchange/dense_mean.h"
#include "pride/registry.h"

namespace pride::methods {

// Throws InvalidArgument, naming the method, unless "ordered" or "native".
exchange::Dense dense_rule(const std::string& method, const std::string& name);

MethodOption dense_option();

// Fills the frames and checks that this rank's gradients are finite.
void encode_dense(const Bucket& bucket, ConstView grad, const StepContext& ctx, exchange::Dense how,
                  Wire& wire);

}  // namespace pride::methods
