// Workers of a coordinator in this process, on threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "pride/run_worker.h"
#include "support/coordinator.h"
#include "support/training.h"

namespace pride::testing {

inline const Layout& layout() {
  static const Layout all(kTensors);
  return all;
}

// One worker: its optimizer, parameters and gradients, in the thread that uses it.
class Worker {
 public:
  Worker(TestCoordinator& coordinator, int number, OptimizerOptions options, float shift = 0)
      : number_(number),
        optimizer_(coordinator.client(number), layout(), std::move(options),
                   {.settings = coordinator.settings}) {
    fill(layout(), params_, [&](std::size_t t, std::size_t i) { return initial(t, i) + shift; });
  }

  void join() { optimizer_.join(params_.span()); }
  StepReport step() {
    const std::int64_t at = optimizer_.steps_done();
    fill(layout(), grads_,
         [&](std::size_t t, std::size_t i) { return gradient(number_, at, t, i); });
    if (poisoned) grads_.span()[0] = std::numeric_limits<float>::quiet_NaN();
    const std::size_t n = layout().tensors().size();
    const auto flags = std::make_unique<bool[]>(n);
    for (std::size_t t = 0; t < n; ++t) flags[t] = unused(number_, at, t);
    return optimizer_.step(params_.span(), grads_.span(), {flags.get(), n});
  }
  void steps(std::int64_t until) {
    while (optimizer_.steps_done() < until) reports.push_back(step());
  }
  std::uint64_t hash() {
    FlatBuffer common(layout().flat_size());
    std::ranges::copy(params_.span(), common.span().begin());
    optimizer_.to_common(common.span());
    return param_hash(layout(), common.span());
  }
  RunWorker& optimizer() { return optimizer_; }
  std::span<float> params() { return params_.span(); }

  std::function<bool(int, std::int64_t, std::size_t)> unused = testing::unused;
  bool poisoned = false;  // its next gradients are not finite
  std::vector<StepReport> reports;

 private:
  int number_;
  RunWorker optimizer_;
  FlatBuffer params_{layout().flat_size()}, grads_{layout().flat_size()};
};

// Each body on a thread; rethrows the first exception.
inline void at_once(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::exception_ptr> errors(bodies.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          bodies[i]();
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline void run_all(std::vector<std::unique_ptr<Worker>>& workers, std::int64_t until) {
  std::vector<std::function<void()>> bodies;
  for (auto& worker : workers) bodies.push_back([&worker, until] { worker->steps(until); });
  at_once(bodies);
}

// Has the hash after a journal, from the initial parameters, by a worker without a coordinator.
inline std::uint64_t replayed_hash(TestCoordinator& coordinator, const OptimizerOptions& options) {
  RunWorker shadow(nullptr, layout(), options);
  FlatBuffer x(layout().flat_size());
  fill(layout(), x, initial);
  for (const auto& record : coordinator.records()) shadow.replay(x.span(), record);
  return param_hash(layout(), x.span());
}

inline std::vector<std::unique_ptr<Worker>> joined(TestCoordinator& coordinator,
                                                   const OptimizerOptions& options, int n,
                                                   const std::vector<int>& weights = {}) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < n; ++i) {
    OptimizerOptions own = options;
    if (!weights.empty()) own.vote_weight = weights[static_cast<std::size_t>(i)];
    workers.push_back(std::make_unique<Worker>(coordinator, i, own));
    workers.back()->join();
  }
  coordinator.voters = n;
  return workers;
}

}  // namespace pride::testing
