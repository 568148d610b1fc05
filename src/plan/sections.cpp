// SPDX-License-Identifier: Apache-2.0
#include "optimizer/section.h"
#include "pride/plan.h"

namespace pride {

std::vector<PlanSection> sections_of(const PlanMethod& method, const Layout& tensors, int world) {
  const Sections all(
      tensors, {.method = method.name, .options = method.options, .groups = method.groups}, world);
  std::vector<PlanSection> sections;
  for (const Section& section : all) {
    if (section.layout.n_coords() == 0) continue;
    sections.push_back({{section.method, section.options}, section.layout});
  }
  return sections;
}

}  // namespace pride
