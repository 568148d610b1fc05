// OrthogonalBlend: Lion's blend of the layout's matrices, orthogonalised. A component of
// dlion-muon.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "methods/matrices.h"
#include "methods/method.h"
#include "rules/orthogonalise.h"

namespace pride::methods {

class OrthogonalBlend {
 public:
  // Reads options `iterations`, `every`, `not_matrices`, `split`, `matrix_scale`. options() has
  // them, with the method's default of the last. With every > 1 adds a buffer "factor" of `kind`.
  OrthogonalBlend(const MethodContext& ctx, StateTable& state, StateKind kind);
  static std::vector<MethodOption> options(const std::string& matrix_scale);
  static std::string host_only(const OptionValues& options);  // MethodEntry::host_only

  std::vector<MatrixForm> forms() const;  // by tensor
  bool has(std::size_t tensor) const noexcept { return of_tensor_[tensor] != nullptr; }

  // The factor on the learning rate of a tensor; 1 if it is no matrix.
  float step_scale(std::size_t tensor) const noexcept;

  // When a tensor's gradient g is complete: u = beta1 m + (1-beta1) g;  m = beta2 m + (1-beta2) g;
  // u is orthogonalised and kept. Where g or m is not finite, m does not change. Does nothing if
  // the guard has a fault. REQUIRES: has(tensor), m and g of its size.
  void blend(std::size_t tensor, std::int64_t step, const kernels::Blend& betas, const Values& g,
             Floats m, Guard guard = nullptr);
  // The step no longer needs the direction of this piece. Frees that of a tensor when it needs none
  // of its pieces.
  void release(const Piece& piece);
  std::span<const float> direction(std::size_t tensor) { return finished(tensor).u.span(); }

  // Operations per step for all matrices together, averaged over steps.
  double operations() const;

  // Signs of the piece's part of the direction. If u was not finite, bits are 0 and the fault is
  // noted. REQUIRES: has(piece.tensor), after blend() of this step.
  void encode(const Piece& piece, const kernels::SharedBits& zeros, std::span<std::uint64_t> signs,
              FaultSlot fault);

 private:
  struct Held {
    Matrix matrix;
    std::size_t offset = 0;  // the tensor's first flat coordinate
    float scale = 1;
    FlatBuffer u = {};               // (rows, cols)
    std::size_t n_released = 0;      // of u
    std::uint32_t* fault = nullptr;  // noted there if u was not finite
    bool waits = false;              // on a device: u is not orthogonalised yet
  };

  const Held& finished(std::size_t tensor);
  void begin(std::int64_t step, std::size_t tensor);
  void orthogonalise(Held& held, std::int64_t step);
  void orthogonalise_all();

  Space& space_;
  Orthogonalise on_device_;
  int iterations_;
  rules::Orthogonaliser orthogonaliser_;
  std::int64_t every_;
  FlatBuffer* factors_ = nullptr;  // of each block of a matrix, from the tensor's start on
  std::vector<std::unique_ptr<Held>> of_tensor_;  // null: no matrix
  std::shared_ptr<std::uint32_t[]> faults_;       // by tensor
  std::vector<char> blended_;                     // by tensor, in this step
  std::int64_t step_ = -1;
  bool any_wait_ = false;
};

}  // namespace pride::methods
