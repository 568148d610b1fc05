// The command `plan`: of numbers that are given, or of a model that is measured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/replica.h"

namespace pride::inline program {

// A model that is measured.
class PlanModel {
 public:
  virtual ~PlanModel() = default;

  virtual void add_flags(CLI::App& command) = 0;
  virtual Layout layout() const = 0;
  virtual std::vector<ParamGroup> groups() const = 0;  // empty: all tensors are in one
  virtual bool is_on_gpu() const = 0;
  virtual bool runs_on_host() const = 0;  // the method does, even if the model is on a GPU
  // Seconds of forward and backward, measured for about `seconds`. Collective.
  virtual double step_s(Communicator& comm, double seconds) const = 0;
};

// Null: only plans with --params and --backward.
void add_plan(CLI::App& command, std::shared_ptr<PlanModel> model);

}  // namespace pride::inline program
