// A callback at the moment when a parameter's gradient is complete. Only this file uses autograd's
// internals.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace pride {

// Calls `received` on the thread that runs backward, each time a gradient has been added to
// parameter.grad (once per backward, however often the parameter was used). The hook lives in the
// parameter's gradient accumulator, which the result keeps alive.
// REQUIRES: parameter is a leaf that needs a gradient.
std::shared_ptr<void> on_gradient(const at::Tensor& parameter, std::function<void()> received);

// Makes the callbacks of that accumulator do nothing from now on.
void forget_gradient(const std::shared_ptr<void>& accumulator);

}  // namespace pride
