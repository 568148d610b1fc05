// Rules: one step of an ordinary optimizer for a given gradient: the mean over ranks, a sum of
// codes, or a worker's own gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/state_table.h"
#include "base/step.h"
#include "kernels/space.h"
#include "pride/layout.h"

namespace pride::rules {

class Rule {
 public:
  virtual ~Rule() = default;

  // One step of flat coordinates [begin, begin + x.size()) for their gradient g. Does nothing if
  // the guard has a fault. REQUIRES: g.n == x.size().
  virtual void step(std::size_t begin, const Values& g, const StepScalars& s, Floats x,
                    Guard guard = nullptr) = 0;

  virtual double operations() const { return 0; }  // of a step's matrix products
  // By tensor; empty: the rule orthogonalises nothing.
  virtual std::vector<MatrixForm> matrices() const { return {}; }

  // Called after step() of each part of a tensor. After the last part it does the work that needs
  // the whole tensor, on x. Returns true if it has changed x in all parts.
  virtual bool end_piece(std::size_t /*tensor*/, std::int64_t /*step*/, const StepScalars& /*s*/,
                         View /*x*/, Guard /*guard*/ = nullptr) {
    return false;
  }
};

// Each rule adds its buffers, of the given kind, to the table. Table and space outlive the rule.

// Loshchilov & Hutter 2019, arXiv:1711.05101, Algorithm 2:
// m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  x = (1 - lr wd) x - lr mhat / (sqrt(vhat) + eps)
class AdamW final : public Rule {
 public:
  AdamW(StateTable& state, StateKind kind, Space& space)
      : space_(space),
        m_(state.add("m", kind)),
        v_(state.add("v", kind, StateTable::Values::kSquares)) {}
  void step(std::size_t begin, const Values& g, const StepScalars& s, Floats x,
            Guard guard = nullptr) override;
  FlatBuffer& m() noexcept { return m_; }
  const FlatBuffer& v() const noexcept { return v_; }

 private:
  Space& space_;
  FlatBuffer &m_, &v_;
};

// Chen et al. 2023, arXiv:2302.06675, Program 1:
// x = (1 - lr wd) x - lr sign(b1 m + (1-b1) g);  m = b2 m + (1-b2) g
class Lion final : public Rule {
 public:
  Lion(StateTable& state, StateKind kind, Space& space, DType momentum = DType::kFloat32)
      : space_(space), m_(state.add("m", kind, momentum)) {}
  void step(std::size_t begin, const Values& g, const StepScalars& s, Floats x,
            Guard guard = nullptr) override;

 private:
  Space& space_;
  Stored m_;
};

// Polyak 1964, in the form of torch.optim.SGD, with mu = beta1:
// m = mu m + g;  x = (1 - lr wd) x - lr m, or lr (g + mu m) with Nesterov's momentum
class SgdMomentum final : public Rule {
 public:
  SgdMomentum(StateTable& state, StateKind kind, Space& space, bool nesterov)
      : space_(space), m_(state.add("m", kind)), nesterov_(nesterov) {}
  void step(std::size_t begin, const Values& g, const StepScalars& s, Floats x,
            Guard guard = nullptr) override;

 private:
  Space& space_;
  FlatBuffer& m_;
  bool nesterov_;
};

}  // namespace pride::rules
