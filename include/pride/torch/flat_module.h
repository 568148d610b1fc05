// FlatModule: the parameters and gradients of a torch module as views of pride's flat buffers.
// SPDX-License-Identifier: Apache-2.0
//
//   pride::FlatModule flat(std::move(named_parameters));
//   pride::Optimizer optimizer(comm, flat.layout(), {.method = "dlion-vote"});
//   for (...) { flat.zero_grad(); loss(batch).backward(); flat.step(optimizer); }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pride/layout.h"
#include "pride/optimizer.h"

namespace pride {

// One parameter of a module. Listing a tensor twice (tied weights) keeps its first entry.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // float32 or bfloat16 leaf; ignored if it needs no gradient
  int group = 0;      // TensorSpec::group
};

// Owns the flat buffers; the parameters' tensors become views of them (TensorImpl::set_data, so
// every handle that the module holds follows) and keep the memory alive, as does each .grad.
// Parameters in float32 in CPU memory are the flat buffer itself. Others, on a device or in
// bfloat16, lie in one flat tensor of their own that step() copies through it: gradients are
// widened exactly, and weights are the float32 masters in params(), rounded to nearest, the same on
// all ranks. One thread at a time; each thread that runs backward has a FlatModule of its own.
class FlatModule {
 public:
  // Throws InvalidArgument, naming the parameter: neither float32 nor bfloat16, not a leaf,
  // undefined, on another device or of another type than the first; no trainable parameter at all;
  // or refused by Layout.
  explicit FlatModule(std::vector<NamedParameter> parameters);
  ~FlatModule();
  FlatModule(const FlatModule&) = delete;
  FlatModule& operator=(const FlatModule&) = delete;

  // Tensors in the order given.
  const Layout& layout() const noexcept;

  // The flat buffers, (layout().flat_size()), padding zero. With parameters on a device, or in
  // bfloat16, they are copies: params() as of the last step() or pull(), to be followed by push()
  // when changed; grads() as of the last collect().
  std::span<float> params() noexcept;
  std::span<float> grads() noexcept;

  // True where a tensor has received no gradient since the last zero_grad().
  std::span<const bool> unused() const noexcept;

  // Zeroes all gradients and marks them unused.
  void zero_grad();

  // Updates grads() and unused() from the .grad fields: a replaced .grad is copied in and made a
  // view again, a removed one counts as unused. step() calls it.
  void collect();

  // Copies rank 0's parameters to all ranks, as DistributedDataParallel does when it is made: call
  // it before the first forward, where ranks may have begun with others. Without it such ranks are
  // named in the first step's InvalidArgument. Buffers (running means) stay each rank's own.
  // Collective. REQUIRES: the optimizer was made with layout().
  void broadcast(Optimizer& optimizer);

  // Between steps: more parameters and groups, behind those that there are, here and in the
  // optimizer (Optimizer::add). Gradients held so far are dropped. Collective. Throws
  // InvalidArgument as the constructor, or if one of them is already there or no longer needs a
  // gradient, and then nothing has changed.
  void add(Optimizer& optimizer, std::vector<NamedParameter> parameters,
           std::vector<ParamGroup> groups = {});

  // One step with the gradients held: collect(), Optimizer::step, push(). Collective; throws as
  // Optimizer::step. REQUIRES: the optimizer was made with layout().
  StepReport step(Optimizer& optimizer);

  // The overlapped step: begin before the last backward, which then hands each tensor to the
  // optimizer when its gradient is complete; finish afterwards. From a GPU all are handed over in
  // finish_step: backward need not wait for copies.
  // Errors of the exchange surface from backward or from finish_step. A .grad must not be replaced
  // in between.
  void begin_step(Optimizer& optimizer);
  StepReport finish_step();

  void pull();  // weights -> params(); no operation where they are the same memory
  void push();  // params() -> weights; the same

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pride
