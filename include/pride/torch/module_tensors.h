// ModuleTensors: the parameters of a torch module, and their gradients, for an Optimizer.
// SPDX-License-Identifier: Apache-2.0
//
//   std::vector<pride::NamedParameter> list;
//   for (const auto& p : module->named_parameters()) list.push_back({p.key(), p.value()});
//   pride::ModuleTensors tensors(std::move(list));
//   pride::OptimizerOptions options{.method = "dlion-vote"};
//   tensors.run_on(pride::RunOn::kAuto, options);  // on the GPU, if the parameters are there
//   pride::Optimizer optimizer(comm, tensors.layout(), options);
//   for (...) { tensors.zero_grad(); loss(batch).backward(); tensors.step(optimizer); }
//
// The gradients are this rank's own: remove your all-reduce.
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
  AsMatrix as_matrix = AsMatrix::kByName;
};

// Where a method runs. kAuto: on the GPU that holds all parameters; if that is not possible, on the
// host.
enum class RunOn { kAuto, kHost, kDevice };

// Holds handles of the parameters. Each call reads their present addresses, so set_data(), loads
// and copies between calls are allowed. Optimizer::save() reads bfloat16 parameters at the
// addresses of the last call: after set_data(), call read() with Optimizer::place(), then save().
//
// Dense row-major tensors are read and written in place if they are in CPU memory, or on the GPU
// that run_on() has chosen. Tensors with other strides are copied. So are tensors of a GPU if the
// method runs on the host (page-locked copies). Copies have the tensor's dtype. The float32 masters
// of bfloat16 and float16 parameters are state of the optimizer.
//
// One thread at a time. A thread that runs the backward of its own model needs a ModuleTensors of
// its own.
//
// All calls that read the parameters throw InvalidArgument, naming the parameter, if its shape,
// dtype or device has changed.
class ModuleTensors {
 public:
  // Throws InvalidArgument, naming the parameter, if one has another dtype, is not dense, not a
  // leaf or undefined, or if Layout refuses it; also if no parameter is trainable.
  explicit ModuleTensors(std::vector<NamedParameter> parameters);
  ~ModuleTensors();
  ModuleTensors(const ModuleTensors&) = delete;
  ModuleTensors& operator=(const ModuleTensors&) = delete;

  // The trainable parameters, in the order given.
  const Layout& layout() const noexcept;

  // Chooses where the method of these options runs. Call it before the optimizer is made. For a GPU
  // it sets options.device, stream and orthogonalise. `products`: the type in which matrices are
  // multiplied, float32 or bfloat16. In the calls below pride's work and torch's current stream
  // then wait for each other. kAuto takes the GPU if the method has kernels, which give the host's
  // bits there, and if there is memory. If parameters are on a GPU and the method runs on the host,
  // it returns the reason; empty in all other cases, and with kHost. Throws InvalidArgument with
  // the reason if kDevice is not possible.
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

  // The step in parts, to overlap with backward (OptimizerOptions::overlap). Call begin_step()
  // before the last backward of the step. Backward hands each gradient to the optimizer when it is
  // complete. Then call finish_step(). If parameters are on a GPU and the method runs on the host,
  // finish_step() hands over all gradients, because backward would wait for the copies. Backward or
  // finish_step() throws errors of the exchange. In between do not change or move parameters and
  // gradients.
  void begin_step(Optimizer& optimizer);
  StepReport finish_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
