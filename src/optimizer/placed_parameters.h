// PlacedParameters: where the parameters of a layout lie, as the caller says, and the float32
// masters of those that are narrower.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/step.h"
#include "kernels/space.h"
#include "pride/flat_buffer.h"
#include "pride/layout.h"
#include "pride/state.h"

namespace pride {

// A parameter in bfloat16 or float16 has a float32 master, from the first time that it is placed.
// Methods read and write masters. Of bfloat16 the caller's values are its upper halves, and the
// lower ones lie here (base/floats.h); of float16 all of it lies here, and the caller's values are
// rounded from it.
class PlacedParameters {
 public:
  // Both must outlive this object.
  PlacedParameters(const Layout& layout, Space& space);

  // Takes the addresses, and what was loaded. Throws InvalidArgument, naming the call and the
  // tensor: another size, another dtype than before, or no memory.
  // A float16 value that is not its rounded master is taken over by it. A bfloat16 value has its
  // lower half from before, whatever the caller has written.
  void place(const Parameters& params, const char* call);

  View view() const noexcept { return {flat_, each_ ? places_.data() : nullptr, &space_}; }

  // Rounds the masters to the caller's values, where these are not a part of them.
  void publish() const;

  // ---- State: "master/<parameter>", as float32, equal on all ranks.

  // REQUIRES: the parameters are still where they were placed.
  void save(StateDict& out) const;
  // Throws InvalidArgument, and load() must not be called: a master that does not fit.
  void check(const StateDict& in) const;
  // The masters in it are those of values that are their rounded ones, when they are placed next.
  // A state need not have masters.
  void load(const StateDict& in);
  // Takes over what one for the first tensors of this layout holds.
  void take(const PlacedParameters& other);
  std::uint64_t bytes() const noexcept;  // of masters, without those that wait to be placed

 private:
  struct Master {
    DType dtype = DType::kFloat32;
    Tensor caller;
    FlatBuffer memory;          // the master, or its lower halves
    std::vector<float> loaded;  // until it is placed

    bool narrow() const noexcept { return dtype != DType::kFloat32; }
    Floats values() const;  // REQUIRES: narrow()
  };
  void check(const Tensor& tensor, std::size_t index, const char* call) const;
  void place(Master& master);
  void take_loaded(Master& master);

  const Layout& layout_;
  Space& space_;
  Floats flat_;
  std::vector<ParameterPlace> places_;
  bool each_ = false;            // tensors were placed one by one
  std::vector<Master> masters_;  // by tensor
};

}  // namespace pride
