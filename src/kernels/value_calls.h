// Calls of the update rules for a given gradient, and of kernels that move and set values. The
// rules of calls.h apply.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/step.h"
#include "kernels/fault.h"
#include "kernels/kernels.h"
#include "pride/float16.h"

namespace pride::kernels {

// ---- Update rules -------------------------------------------------------------------------------

struct AdamW {
  Values g;
  AdamScalars s;
  std::span<float> m, v;
  Floats x;
  Guard guard = nullptr;
  void run() const noexcept;
};
struct DenseLion {
  Values g;
  Blend blend;
  Step step;
  Floats m, x;
  Guard guard = nullptr;
  void run() const noexcept;
};
struct SgdMomentum {
  Values g;
  float momentum;
  bool nesterov;
  Step step;
  std::span<float> m;
  Floats x;
  Guard guard = nullptr;
  void run() const noexcept;
};

// ---- Values -------------------------------------------------------------------------------------

struct Widen {
  Values g;
  std::span<float> out;
  void run() const noexcept;
};
struct Copy {
  ConstFloats from;
  Floats to;
  void run() const noexcept;
};
struct Fill {
  std::span<float> x;
  float value;
  void run() const noexcept;
};
// Fills with NaN if the guard has a fault.  REQUIRES: a guard.
struct Poison {
  std::span<float> x;
  Guard guard;
  void run() const noexcept;
};
struct Sum {
  ConstFloats a;
  std::span<const float> b;
  Floats out;
  void run() const noexcept;
};
struct Scale {
  float factor;
  std::span<float> x;
  void run() const noexcept;
};
struct ApplyDecay {
  float decay;
  Floats x;
  void run() const noexcept;
};
// Notes a NaN or Inf.
struct CheckFinite {
  Values g;
  FaultSlot fault;
  void run() const noexcept;
};
// Notes if a value is not 0.
struct FindNonzero {
  std::span<const float> x;
  FaultSlot found;
  void run() const noexcept;
};
// A parameter in float16 and its master: master = value where that is not the rounded master.
struct Adopt {
  std::span<const Float16> values;
  std::span<float> master;
  void run() const noexcept;
};
// values = the rounded masters
struct Publish {
  std::span<const float> master;
  std::span<Float16> values;
  void run() const noexcept;
};

}  // namespace pride::kernels
