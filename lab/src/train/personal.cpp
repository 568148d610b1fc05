// SPDX-License-Identifier: Apache-2.0
#include "train/personal.h"

#include <algorithm>

#include "pride/choose_tensors.h"
#include "pride/comm/thread_comm.h"
#include "pride/error.h"
#include "pride/registry.h"

namespace pride::train {
namespace {

// Tensors [begin, end). The method has decided about all which are matrices: its words may name
// tensors of the other part.
Layout part_of(const Layout& all, std::size_t begin, std::size_t end,
               const OptimizerOptions& options) {
  const auto forms = matrices_of(options.method, all, options.options).forms;
  std::vector<TensorSpec> specs;
  for (std::size_t t = begin; t < end; ++t) {
    specs.push_back(all.tensors()[t].spec);
    if (forms.empty()) continue;
    specs.back().as_matrix = forms[t] == MatrixForm::kNone ? AsMatrix::kNo : AsMatrix::kYes;
  }
  return Layout(std::move(specs));
}

// A method with local steps changes a worker's own parameters by its local rule. Personal tensors
// are changed by that rule, too.
OptimizerOptions options_alone(const OptimizerOptions& given) {
  OptimizerOptions options = given;
  options.overlap = false;
  options.vote_weight = 1;
  if (const auto local = local_rule_of(given.method, given.options)) {
    options.method = local->method;
    options.options = local->options;
  }
  return options;
}

}  // namespace

std::vector<NamedParameter> personal_last(std::vector<NamedParameter> all,
                                          const std::string& patterns, std::size_t& n_personal) {
  n_personal = 0;
  if (patterns.empty()) return all;
  std::erase_if(all, [](const NamedParameter& p) { return !p.tensor.requires_grad(); });
  std::vector<TensorSpec> specs;
  for (const NamedParameter& p : all) {
    specs.push_back({.name = p.name, .shape = p.tensor.sizes().vec(), .group = p.group});
  }
  const auto chosen = choose_tensors("--personal", Layout(std::move(specs)), patterns);
  n_personal = static_cast<std::size_t>(std::ranges::count(chosen, 1));
  PRIDE_CHECK(n_personal > 0, "--personal ", patterns, ": matches no tensor of the model");
  PRIDE_CHECK(n_personal < all.size(), "--personal ", patterns, ": matches every tensor of the ",
              "model: no tensor would be shared");
  std::vector<NamedParameter> ordered;
  for (const char personal : {0, 1}) {
    for (std::size_t t = 0; t < all.size(); ++t) {
      if (chosen[t] == personal) ordered.push_back(all[t]);
    }
  }
  return ordered;
}

Layout common_layout(const Layout& all, std::size_t n_personal, const OptimizerOptions& options) {
  return n_personal == 0 ? all : part_of(all, 0, all.tensors().size() - n_personal, options);
}

Personal::Personal(const Layout& all, const Layout& common, const TrainPlan& plan)
    : first_tensor_(common.tensors().size()),
      options_(options_alone(plan.optimizer)),
      alone_(std::move(make_thread_world(1).front())) {
  optimizer_ = std::make_unique<Optimizer>(
      *alone_, part_of(all, first_tensor_, all.tensors().size(), plan.optimizer), options_);
}

std::string Personal::note() const {
  const auto& tensors = optimizer_->layout().tensors();
  std::string names;
  for (const TensorSlot& slot : tensors) names += concat(names.empty() ? "" : ", ", slot.spec.name);
  return concat("personal, by ", options_.method, " on this worker alone: ", tensors.size(), " of ",
                first_tensor_ + tensors.size(), " tensors, ", optimizer_->layout().n_coords(),
                " parameters: ", names);
}

void Personal::step(std::span<const ParamGroup> groups, float factor,
                    std::span<const Tensor> params, std::span<const ConstTensor> grads,
                    StepReport& report) {
  for (int group = 0; group < optimizer_->layout().n_groups(); ++group) {
    optimizer_->set_group(groups[static_cast<std::size_t>(group)], group);
  }
  optimizer_->set_gradient_factor(factor);
  const StepReport own =
      optimizer_->step(params.subspan(first_tensor_), grads.subspan(first_tensor_));
  report.apply_s += own.encode_s + own.exchange_s + own.apply_s;
  if (own.skipped) {
    report.skip_reason += concat(report.skipped ? "; " : "", "personal ", own.skip_reason);
  }
  report.skipped = report.skipped || own.skipped;
}

}  // namespace pride::train
