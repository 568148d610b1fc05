// Personal tensors (--personal) of a coordinator's worker, which changes them by its own gradients.
// They are never sent, and are not in the hash that workers compare.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/communicator.h"
#include "pride/layout.h"
#include "pride/optimizer.h"
#include "pride/torch/module_tensors.h"
#include "pride/train/plan.h"

namespace pride::train {

// Moves the n_personal tensors that `patterns` match to the end, so that tables begin with the
// shared tensors. Empty patterns match none. Throws InvalidArgument if others match none, or all.
std::vector<NamedParameter> personal_last(std::vector<NamedParameter> all,
                                          const std::string& patterns, std::size_t& n_personal);

// The layout of the shared tensors, from a layout in that order. Of options, method and its own.
Layout common_layout(const Layout& all, std::size_t n_personal, const OptimizerOptions& options);

// The optimizer of the personal tensors, in a world of one: by the method, or by its local rule.
class Personal {
 public:
  Personal(const Layout& all, const Layout& common, const TrainPlan& plan);

  Optimizer& optimizer() noexcept { return *optimizer_; }
  // The tensors and their method; for the log.
  std::string note() const;

  // Optimizer::place(). `params` and `grads`, here and below, are tables of all tensors.
  void place(std::span<const Tensor> params) { optimizer_->place(params.subspan(first_tensor_)); }

  // A step with this worker's gradients, multiplied by `factor`; adds its result to the report.
  // `groups`: TrainPlan::groups_at() of the step.
  void step(std::span<const ParamGroup> groups, float factor, std::span<const Tensor> params,
            std::span<const ConstTensor> grads, StepReport& report);

 private:
  std::size_t first_tensor_;  // of the whole layout
  OptimizerOptions options_;
  std::unique_ptr<Communicator> alone_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace pride::train
