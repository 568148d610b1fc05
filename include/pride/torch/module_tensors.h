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

// Where a method runs: kAuto: on the GPU that holds all parameters, if it can, else on the host.
enum class RunOn { kAuto, kHost, kDevice };

// Holds handles of the parameters. They keep their storage, and each call looks where they lie now:
// set_data(), loads and copies between calls count. Dense row-major tensors are read and written in
// place: those in CPU memory, or once run_on() has chosen it those on the GPU. Others go through
// copies of their own dtype: with other strides, or, where the method runs on the host, on a device
// (page-locked copies). The float32 masters of bfloat16 and float16 parameters are state of the
// optimizer. One thread at a time; each thread that runs backward has a ModuleTensors of its own.
//
// All calls that look at the parameters throw InvalidArgument, naming the parameter, if its shape,
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

  // Before the optimizer of these options is made: where its method runs. On a GPU it sets
  // options.device, stream and orthogonalise, with products of matrices in float32 or bfloat16;
  // pride's work and that of torch's current stream then wait for each other in the calls below.
  // Returns why the method runs on the host though parameters lie on a GPU; empty: it does not, or
  // kHost was asked for. Throws InvalidArgument with the reason if kDevice cannot be had.
  std::string run_on(RunOn where, OptimizerOptions& options,
                     at::ScalarType products = at::ScalarType::Float);
  bool is_on_device() const noexcept;
  std::string device_name() const;  // "cuda:0 (NVIDIA H100 80GB HBM3)"; of the host: "cpu"

  // Where the parameters lie, to be read: valid until the next call, and as long as nobody moves
  // them. On a GPU: memory of it, for calls of the optimizer.
  std::span<const Tensor> parameters();

  // Calls body(parameters()), which calls the optimizer. change(): the optimizer may write to them;
  // copies are copied back, unless body throws. read(): it does not, as in hand_over().
  void change(const std::function<void(std::span<const Tensor>)>& body);
  void read(const std::function<void(std::span<const Tensor>)>& body);

  // Where the gradients lie; null data: the parameter has no .grad, and is unused in a step. Valid
  // until the next call of gradients(), zero_grad() or a step.
  std::span<const ConstTensor> gradients();

  // Removes all gradients, as torch's zero_grad(set_to_none = true) does.
  void zero_grad();

  // Copies rank 0's parameters to all ranks, as DistributedDataParallel does when it is made: call
  // it before the first forward, where ranks may have begun with others. Without it such ranks are
  // named in the first step's InvalidArgument. Buffers (running means) stay each rank's own.
  // Collective. REQUIRES: the optimizer was made with layout().
  void broadcast(Optimizer& optimizer);

  // Between steps: more parameters and groups, behind those that there are, here and in the
  // optimizer (Optimizer::add). Collective. Throws InvalidArgument as the constructor, or if one of
  // them is already there or no longer needs a gradient, and then nothing has changed.
  void add(Optimizer& optimizer, std::vector<NamedParameter> parameters,
           std::vector<ParamGroup> groups = {});

  // One step with the gradients held. Collective; throws as Optimizer::step. REQUIRES: the
  // optimizer was made with layout().
  StepReport step(Optimizer& optimizer);

  // The overlapped step: begin before the last backward, which then hands each tensor to the
  // optimizer when its gradient is complete; finish afterwards. Tensors of a GPU whose method runs
  // on the host are handed over in finish_step: backward need not wait for copies.
  // Errors of the exchange surface from backward or from finish_step. Parameters and gradients must
  // not be changed or moved in between.
  void begin_step(Optimizer& optimizer);
  StepReport finish_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
