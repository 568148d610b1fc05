// RunWorker: a worker of a coordinator's run, which workers join and leave
// (coordinator/docs/design.md).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pride/replica.h"

namespace pride {

class CoordinatorClient;  // pride/coordinator.h

struct RunWorkerOptions {
  // A text that must be equal on all workers of the run. If it has lines "name=value", a refusal
  // names the first line that differs.
  std::string settings = {};
  std::function<std::optional<double>()> report_loss = nullptr;  // called before each ballot
};

// Every exchange is a round of the run. A frozen tensor needs weight decay 0, because records do
// not contain the flags.
class RunWorker : public Replica {
 public:
  // OptimizerOptions::overlap has no effect. `client` null: only replay(). REQUIRES: a method whose
  // servers need only frames; no nodes; layouts of whole models.
  RunWorker(std::shared_ptr<CoordinatorClient> client, Layout layout, OptimizerOptions options,
            RunWorkerOptions run = {});

  // Joins the run. Call it before the first step and after each load(). The first worker of a run
  // provides the parameters. Others download them, or replay the rounds that they missed if that is
  // fewer bytes. steps_done() is then the step of the open round. Momentum stays this worker's own.
  // A replay drops local steps since the last exchange.
  void join(const Parameters& params);

  // One step with this worker's gradients, as Optimizer::step(). The step that ends a round sends a
  // ballot and applies the round's record, and those of later rounds that were missed.
  StepReport step(const Parameters& params, const Gradients& grads,
                  std::span<const bool> unused = {});

  // Replays a journal: applies the record of the next round to `params`. steps_done() then includes
  // the round. Throws CommError, and has changed nothing, if the record is damaged, of another
  // round, or for parameters with another hash.
  void replay(const Parameters& params, std::span<const std::byte> record);

  int number() const;  // of this worker in the run; 0 before join()

 private:
  struct Impl;
  Impl& impl() const noexcept;
};

}  // namespace pride
