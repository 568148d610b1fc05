// ModuleTensors: the parameters of a torch module, and their gradients, for an Optimizer.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::ModuleTensors tensors(std::move(named_parameters));
//   pride::OptimizerOptions options{.method = "dlion-vote"};
//   tensors.run_on(pride::RunOn::kAuto, options);  // on the GPU, if the parameters are there
//   pride::Optimizer optimizer(comm, tensors.layout(), options);
//   for (...) { tensors.zero_grad(); loss(batch).backward(); tensors.step(optimizer); }
//
// The gradients are this rank's own: remove all-reduces of your own.
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

// Where a method runs: kAuto: on the GPU that holds all parameters, if it can, otherwise on the
// host.
enum class RunOn { kAuto, kHost, kDevice };

// Holds handles of the parameters. They keep their storage, and each call reads their present
// addresses, so set_data(), loads and copies between calls are allowed. After set_data() of a
// bfloat16 parameter Optimizer::save() needs a call before it that reads the parameters, such as
// read() with Optimizer::place(). Dense row-major tensors are
// read and written in place if they are in CPU memory, or on the GPU that run_on() has chosen.
// Others go through copies of their dtype: tensors with other strides, and tensors on a device
// (page-locked copies) if the method runs on the host. The float32 masters of bfloat16 and float16
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

  // Chooses where the method of these options runs. Call it before the optimizer is made. For a GPU
  // it sets options.device, stream and orthogonalise, with products of matrices in float32 or
  // bfloat16. In the calls below pride's work and torch's current stream then wait for each other.
  // Returns why the method runs on the host although parameters are on a GPU. Empty: it does not,
  // or kHost was given. Throws InvalidArgument with the reason if kDevice is not possible.
  std::string run_on(RunOn where, OptimizerOptions& options,
                     at::ScalarType products = at::ScalarType::Float);
  bool is_on_device() const noexcept;
  std::string device_name() const;  // "cuda:0 (NVIDIA H100 80GB HBM3)"; for the host: "cpu"

  // The parameters' memory, read-only: valid until the next call, as long as they are not moved. On
  // a GPU it is the GPU's memory, for calls of the optimizer.
  std::span<const Tensor> parameters();

  // Calls body(parameters()), which calls the optimizer. With change() the optimizer may write to
  // the parameters, and copies are copied back, unless body throws. With read() it only reads, as
  // in hand_over().
  void change(const std::function<void(std::span<const Tensor>)>& body);
  void read(const std::function<void(std::span<const Tensor>)>& body);

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
  // optimizer when its gradient is complete; finish afterwards. If tensors of a GPU have a method
  // on the host, all are handed over in finish_step, so that backward does not wait for copies.
  // Errors of the exchange are thrown by backward or finish_step. Parameters and gradients must not
  // be changed or moved in between.
  void begin_step(Optimizer& optimizer);
  StepReport finish_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
