// PlacedParameters: the caller's addresses of a layout's parameters, and the float32 masters of
// narrower ones.
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
// Methods read and write masters. For bfloat16 the caller's values are the masters' upper halves,
// and this object holds the lower ones (base/floats.h). For float16 it holds the whole masters, and
// rounds them to the caller's values.
class PlacedParameters {
 public:
  // Both must outlive this object.
  PlacedParameters(const Layout& layout, Space& space);

  // The parameters at other addresses, with copies of the masters.
  PlacedParameters(const PlacedParameters& other, const Parameters& params, const char* call);

  // Stores the addresses, and adopts loaded masters. Throws InvalidArgument, naming the call and
  // the tensor, for another size, another dtype than before, or no memory.
  // If a float16 value is not its rounded master, the master adopts it. A bfloat16 value keeps its
  // lower half, whatever the caller has written.
  void place(const Parameters& params, const char* call);

  // False if they were placed elsewhere.
  bool may_be_at(const Parameters& params) const;
  View view() const noexcept { return {flat_, each_ ? places_.data() : nullptr, &space_}; }

  // Rounds float16 masters to the caller's values; bfloat16 values are parts of their masters.
  void publish() const;

  // ---- State: "master/<parameter>", as float32, equal on all ranks.

  // REQUIRES: the parameters are still where they were placed.
  void save(StateDict& out) const;
  // Throws InvalidArgument if a master does not fit; then load() must not be called.
  void check(const StateDict& in) const;
  // The next place() adopts a master for each value that is this master, rounded. A state need not
  // have masters.
  void load(const StateDict& in);
  // Copies the masters of `other`, whose layout is the first tensors of this one.
  void take(const PlacedParameters& other);
  std::uint64_t bytes() const noexcept;  // of masters, except loaded ones that are not placed yet

 private:
  struct Master {
    DType dtype = DType::kFloat32;
    Tensor caller;
    FlatBuffer memory;          // the master, or its lower halves
    std::vector<float> loaded;  // the loaded master, until place()

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
