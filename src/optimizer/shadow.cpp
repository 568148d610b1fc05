// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "optimizer/central.h"
#include "optimizer/run_values.h"
#include "pride/serving.h"

namespace pride {

struct Shadow::Impl {
  explicit Impl(const RunDescription& run)
      : layout(run.tensors),
        options(optimizer_options(run)),
        sections(layout, options, 1),
        steps(sections.make_steps(options, 1, Space::host())),
        central(layout, sections, steps, options),
        values(layout, sections, steps),
        x(layout.flat_size()) {
    for (const SectionStep& step : steps) {
      step.method->state().allocate(step.section->layout.flat_size());
    }
  }

  const Layout layout;
  const OptimizerOptions options;
  Sections sections;
  const std::vector<SectionStep> steps;
  Central central;
  const RunValues values;
  FlatBuffer x;
  std::int64_t round = -1;
};

Shadow::Shadow(const RunDescription& run) : impl_(std::make_unique<Impl>(run)) {}

Shadow::~Shadow() = default;

void Shadow::take(std::int64_t before_round, std::span<const float> params) {
  impl_->values.take(params, {.flat = impl_->x.span()});
  impl_->round = before_round;
}

void Shadow::apply(std::span<const std::byte> record, const std::string& where) {
  impl_->central.replay({.flat = impl_->x.span()}, impl_->round, record, where);
  ++impl_->round;
}

std::int64_t Shadow::round() const { return impl_->round; }

FlatBuffer Shadow::params() const { return impl_->values.copy({.flat = impl_->x.span()}); }

std::uint64_t Shadow::hash() const { return impl_->values.hash(View{.flat = impl_->x.span()}); }

}  // namespace pride
