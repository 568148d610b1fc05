// SPDX-License-Identifier: Apache-2.0
#include "torch/gradient_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace pride {
namespace {

using Variables = torch::autograd::variable_list;

// A std::shared_ptr, or from libtorch 2.14 on a c10::intrusive_ptr.
using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

struct Hooked {
  Accumulator accumulator;
  std::shared_ptr<std::function<void()>> received;  // emptied by forget_gradient
};

class GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::shared_ptr<std::function<void()>> received)
      : received_(std::move(received)) {}

  Variables operator()(const Variables& outputs, const Variables& inputs) override {
    // a branch that did not contribute arrives as an undefined gradient
    const bool contributes = !inputs.empty() && inputs.front().defined();
    if (contributes && *received_) (*received_)();
    return outputs;
  }

 private:
  std::shared_ptr<std::function<void()>> received_;
};

}  // namespace

std::shared_ptr<void> on_gradient(const at::Tensor& parameter, std::function<void()> received) {
  auto hooked = std::make_shared<Hooked>();
  hooked->accumulator = torch::autograd::impl::grad_accumulator(parameter);
  hooked->received = std::make_shared<std::function<void()>>(std::move(received));
  hooked->accumulator->add_post_hook(std::make_unique<GradientHook>(hooked->received));
  return hooked;
}

void forget_gradient(const std::shared_ptr<void>& accumulator) {
  *std::static_pointer_cast<Hooked>(accumulator)->received = nullptr;
}

}  // namespace pride
