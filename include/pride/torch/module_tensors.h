// ModuleTensors: the parameters of a torch module, and their gradients, for an Optimizer.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::ModuleTensors tensors(std::move(named_parameters));
//   pride::Optimizer optimizer(comm, tensors.layout(), {.method = "dlion-vote"});
//   for (...) { tensors.zero_grad(); loss(batch).backward(); tensors.step(optimizer); }
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/layout.h"
#include "pride/optimizer.h"
#include "pride/tensors.h"

namespace pride {

// One parameter of a module. Listing a tensor twice (tied weights) keeps its first entry.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // float32, bfloat16 or float16 leaf; ignored if it needs no gradient
  int group = 0;      // TensorSpec::group
};

// Holds handles of the parameters. They keep their storage, and each call reads their present
// addresses, so set_data(), loads and copies between calls are allowed. Dense row-major tensors in
// CPU memory are read and written in place. Tensors on a device (page-locked copies) or with other
// strides go through host copies of their dtype. The float32 masters of bfloat16 and float16
// parameters are state of the optimizer. One thread at a time; each thread that runs backward needs
// its own ModuleTensors.
//
// All calls that read the parameters throw InvalidArgument, naming the parameter, if its shape,
// dtype or device has changed.
class ModuleTensors {
 public:
  // Throws InvalidArgument, naming the parameter: another dtype, not dense, not a leaf, undefined;
  // no trainable parameter at all; or refused by Layout.
  explicit ModuleTensors(std::vector<NamedParameter> parameters);
  ~ModuleTensors();
  ModuleTensors(const ModuleTensors&) = delete;
  ModuleTensors& operator=(const ModuleTensors&) = delete;

  // Tensors in the order given.
  const Layout& layout() const noexcept;

  // The parameters' memory, read-only: valid until the next call, as long as they are not moved.
  std::span<const Tensor> parameters();

  // Calls body(parameters()), then copies host copies back, unless body throws.
  void change(const std::function<void(std::span<const Tensor>)>& body);

  // The gradients' memory; null data: the parameter has no .grad and is unused in a step. Valid
  // until the next call of gradients(), zero_grad() or a step.
  std::span<const ConstTensor> gradients();

  // Removes all gradients, as torch's zero_grad(set_to_none = true) does.
  void zero_grad();

  // Copies rank 0's parameters to all ranks, as DistributedDataParallel's constructor does. Call it
  // before the first forward if ranks may start with different ones. Otherwise the first step
  // throws InvalidArgument and names these ranks. Buffers (running means) stay each rank's own.
  // Collective. REQUIRES: the optimizer was made with layout().
  void broadcast(Optimizer& optimizer);

  // Between steps: appends parameters and groups, here and in the optimizer (Optimizer::add).
  // Collective. Throws InvalidArgument as the constructor does, or if one of them is already in the
  // list or needs no gradient. Nothing has changed then.
  void add(Optimizer& optimizer, std::vector<NamedParameter> parameters,
           std::vector<ParamGroup> groups = {});

  // One step with the present gradients. Collective; throws as Optimizer::step. REQUIRES: the
  // optimizer was made with layout().
  StepReport step(Optimizer& optimizer);

  // The overlapped step: begin before the last backward, which then hands each tensor to the
  // optimizer when its gradient is complete; finish afterwards. From a GPU all are handed over in
  // finish_step, so that backward does not wait for copies. Errors of the exchange are thrown by
  // backward or finish_step. Parameters and gradients must not be changed or moved in between.
  void begin_step(Optimizer& optimizer);
  StepReport finish_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
