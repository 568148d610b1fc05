// The model of `pride plan`: that of the flags of `pride train`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pride/train/options.h"
#include "program/plan/plan.h"
#include "train_names.h"

namespace pride::app {

class TrainedModel final : public PlanModel {
 public:
  void add_flags(CLI::App& command) override;
  Layout layout() const override;
  std::vector<ParamGroup> groups() const override;
  bool is_on_gpu() const override { return workload_.device == "cuda"; }
  bool runs_on_host() const override { return workload_.run_on == "host"; }
  double step_s(Communicator& comm, double seconds) const override;

 private:
  TrainOptions workload_;
};

}  // namespace pride::app
