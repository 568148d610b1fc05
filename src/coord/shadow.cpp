// SPDX-License-Identifier: Apache-2.0
#include "coord/shadow.h"

#include <memory>

#include "optimizer/central.h"
#include "optimizer/run_values.h"

namespace pride::coord {

OptimizerOptions options_of(const RunDescription& run) {
  OptimizerOptions options;
  options.method = run.method;
  options.options = run.options;
  options.groups = run.groups;
  options.bucket_coords = run.bucket_coords;
  options.seed = run.seed;
  return options;
}

struct Shadow::Impl {
  explicit Impl(const RunDescription& run)
      : layout(run.tensors),
        options(options_of(run)),
        sections(layout, options, 1),
        step(sections[0], make_method(sections[0], options, 1, Space::host()), Space::host()),
        x(layout.flat_size()) {
    const Method* const methods[] = {step.method.get()};
    sections.cut(methods, run.bucket_coords, 1);
    step.method->state().allocate(layout.flat_size());
    central = std::make_unique<Central>(step, options);
  }

  const Layout layout;
  const OptimizerOptions options;
  Sections sections;
  SectionStep step;
  std::unique_ptr<Central> central;
  FlatBuffer x;
  std::int64_t round = -1;
};

Shadow::Shadow(const RunDescription& run) : impl_(std::make_unique<Impl>(run)) {}

Shadow::~Shadow() = default;

void Shadow::take(std::int64_t before_round, std::span<const float> params) {
  take_run_values(impl_->layout, params, *impl_->step.method, {.flat = impl_->x.span()});
  impl_->round = before_round;
}

void Shadow::apply(std::span<const std::byte> record, const std::string& where) {
  impl_->central->replay({.flat = impl_->x.span()}, impl_->round, record, where);
  ++impl_->round;
}

std::int64_t Shadow::round() const { return impl_->round; }

FlatBuffer Shadow::params() const {
  return run_values(impl_->layout, *impl_->step.method, {.flat = impl_->x.span()});
}

std::uint64_t Shadow::hash() const {
  return run_hash(impl_->layout, *impl_->step.method, {.flat = impl_->x.span()});
}

}  // namespace pride::coord
