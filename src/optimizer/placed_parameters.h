// PlacedParameters: where the parameters of a layout lie, as the caller says, and the float32
// masters of those that are narrower.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "base/state_table.h"
#include "base/step.h"
#include "kernels/space.h"
#include "pride/layout.h"

namespace pride {

// A parameter in bfloat16 or float16 has a master in the state table, from the first time that it
// is placed. Methods read and write masters; the caller's values are the rounded masters.
class PlacedParameters {
 public:
  // All must outlive this object.
  PlacedParameters(const Layout& layout, StateTable& state, Space& space)
      : layout_(layout), state_(state), space_(space) {}

  // Takes the addresses; where a narrow value is not its rounded master, the master takes it over.
  // Throws InvalidArgument, naming the call and the tensor: another size, another dtype than
  // before, or no memory.
  void place(const Parameters& params, const char* call);

  View view() const noexcept {
    return {flat_, flat_ == nullptr ? places_.data() : nullptr, &space_};
  }

  // Rounds the masters to the caller's values.
  void publish() const;

 private:
  struct Narrow {
    std::size_t n = 0;
    Tensor caller;
    float* master = nullptr;
  };
  void check(const Tensor& tensor, std::size_t index, const char* call) const;

  const Layout& layout_;
  StateTable& state_;
  Space& space_;
  float* flat_ = nullptr;
  std::vector<ParameterPlace> places_;
  std::vector<DType> dtypes_;  // by tensor, once they are known
  std::vector<Narrow> narrow_;
};

}  // namespace pride
