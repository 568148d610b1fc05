// A method as the only section of an optimizer, and the inputs of its steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "optimizer/section.h"

namespace pride {

struct OneSection {
  // The layout and the space must outlive this object.
  OneSection(const Layout& layout, std::unique_ptr<Method> method, std::size_t bucket_coords,
             int world, int rank = 0, Space& space = Space::host())
      : sections(layout, {}, world) {
    SectionStep& step = steps.emplace_back(sections[0], std::move(method), space);
    sections.cut(steps, bucket_coords, world);
    step.unused.assign(layout.tensors().size(), 0);
    step.ctx.rank = rank;
    step.ctx.voters = world;
    step.ctx.unused = step.unused;
    step.ctx.memory = &space;
    begin(0);
  }

  void begin(std::int64_t step) {
    steps[0].ctx.step = step;
    steps[0].protocol = steps[0].method->protocol(steps[0].ctx);
  }

  Sections sections;
  std::vector<SectionStep> steps;
};

}  // namespace pride
