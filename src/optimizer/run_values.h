// RunValues: what all workers of a coordinator's run share before a round, as one row of floats:
// the parameters, then section by section each shared buffer of the method's state, such as an
// outer momentum.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "optimizer/section.h"
#include "pride/flat_buffer.h"
#include "pride/layout.h"

namespace pride {

class RunValues {
 public:
  // All must outlive this object. `steps`: a worker's.
  RunValues(const Layout& layout, const Sections& sections, std::span<const SectionStep> steps)
      : layout_(layout), sections_(sections), steps_(steps) {}

  std::size_t floats() const;
  // For parameters alone it is param_hash(). REQUIRES: a row of floats().
  std::uint64_t hash(std::span<const float> row) const;
  // The same from a worker's state: `x` are its parameters, local or common.
  std::uint64_t hash(View x) const;
  std::uint64_t params_hash(View x) const;  // of the common parameters alone
  FlatBuffer copy(View x) const;
  // Copies the row into x and the methods' states, and drops drifts. REQUIRES: a row of floats().
  void take(std::span<const float> row, View x) const;

 private:
  // A part of the row: values by tensor.
  struct Part {
    const Layout* layout;
    Memory* memory;
    std::function<ConstFloats(std::size_t tensor)> values;
  };
  Part common(View x) const;  // the parameters
  std::vector<Part> parts(View x) const;
  static std::uint64_t hash_of(const Part& part);
  static std::uint64_t hash_of(std::span<const Part> parts);

  const Layout& layout_;
  const Sections& sections_;
  const std::span<const SectionStep> steps_;
};

// Copy from one flat buffer to the tensors, and back. Padding does not change.
void scatter(const Layout& layout, std::span<const float> flat, View x);
void gather(const Layout& layout, ConstView x, std::span<float> flat);

}  // namespace pride
