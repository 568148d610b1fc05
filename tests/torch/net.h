// A small module of torch, and its twin.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "pride/torch/module_tensors.h"

namespace pride {

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(5, 7));
    unused = register_module("unused", torch::nn::Linear(3, 2));
    last = register_module("last", torch::nn::Linear(7, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }

  torch::nn::Linear first{nullptr}, unused{nullptr}, last{nullptr};
};

inline std::vector<NamedParameter> named(const torch::nn::Module& module) {
  std::vector<NamedParameter> list;
  for (const auto& item : module.named_parameters()) {
    list.push_back({.name = item.key(), .tensor = item.value()});
  }
  return list;
}

inline torch::Tensor batch(int step) {
  return torch::arange(4 * 5).reshape({4, 5}).mul(0.37 + 0.11 * step).sin();
}

inline torch::Tensor loss_of(Net& net, int step) {
  return net.forward(batch(step)).square().mean();
}

// the same start for a net and its twin
inline std::shared_ptr<Net> twin_of(const Net& net) {
  const torch::NoGradGuard no_grad;
  auto twin = std::make_shared<Net>();
  const auto from = net.parameters();
  const auto to = twin->parameters();
  for (std::size_t i = 0; i < from.size(); ++i) torch::Tensor(to[i]).copy_(from[i]);
  return twin;
}

}  // namespace pride
