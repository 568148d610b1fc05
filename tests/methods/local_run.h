// Runs of local steps whose gradients depend on the parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "support/training.h"

namespace pride::testing {

inline const char* const kLocalMethods[] = {"local-vote", "local-ef", "dsm", "diloco"};

// Gradients of a quadratic around a point of each rank's own: they depend on the parameters.
inline void pull(const Layout& layout, int rank, std::span<const float> x, FlatBuffer& grads) {
  fill(layout, grads, [&](std::size_t t, std::size_t i) {
    return x[layout.tensors()[t].offset + i] - gradient(rank, 0, t, i);
  });
}

inline void train(Optimizer& optimizer, Communicator& comm, FlatBuffer& x, int from, int to) {
  FlatBuffer grads(x.size());
  for (int step = from; step < to; ++step) {
    pull(optimizer.layout(), comm.rank(), x.span(), grads);
    optimizer.step(x.span(), grads.span());
  }
}

inline OptimizerOptions options_of(const std::string& method, const std::string& rule = "adamw") {
  return {.method = method,
          .options = {{"h", "4"}, {"local", rule}},
          .groups = {{.lr = 0.02, .weight_decay = 0.1}}};
}

}  // namespace pride::testing
