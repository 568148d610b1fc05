// Numbers the coordinates of tensors.
// SPDX-License-Identifier: Apache-2.0
#include "pride/layout.h"

#include <algorithm>
#include <limits>
#include <set>

#include "pride/digest.h"
#include "pride/error.h"

namespace pride {
namespace {

std::size_t count_coords(const TensorSpec& spec) {
  std::size_t n = 1;
  for (const std::int64_t extent : spec.shape) {
    PRIDE_CHECK(extent >= 0, "layout: tensor '", spec.name, "' has a dimension of ", extent,
                ", must be 0 or more");
    const auto e = static_cast<std::size_t>(extent);
    PRIDE_CHECK(e == 0 || n <= std::numeric_limits<std::size_t>::max() / 16 / e, "layout: tensor '",
                spec.name, "' is too large");
    n *= e;
  }
  return n;
}

}  // namespace

Layout::Layout(std::vector<TensorSpec> tensors) {
  std::set<std::string> names;
  Digest digest;
  for (TensorSpec& spec : tensors) {
    PRIDE_CHECK(!spec.name.empty(), "layout: tensor ", tensors_.size(), " has no name");
    PRIDE_CHECK(names.insert(spec.name).second, "layout: two tensors are named '", spec.name, "'");
    PRIDE_CHECK(spec.group >= 0, "layout: tensor '", spec.name, "' is in group ", spec.group,
                ", must be 0 or more");
    TensorSlot slot{std::move(spec), flat_size_, 0, 0};
    slot.n = count_coords(slot.spec);
    if (slot.spec.first_coord) slot.to_whole = *slot.spec.first_coord - slot.offset;
    n_coords_ += slot.n;
    flat_size_ += align_up(slot.n);
    n_groups_ = std::max(n_groups_, slot.spec.group + 1);

    digest.text(slot.spec.name).number(slot.spec.shape.size());
    for (const std::int64_t e : slot.spec.shape) digest.number(static_cast<std::uint64_t>(e));
    digest.number(static_cast<std::uint64_t>(slot.spec.group));
    digest.number(0);  // formerly a flag of each tensor; saved states of 0.1 hold this digest
    tensors_.push_back(std::move(slot));
  }
  digest_ = digest.value();
}

std::size_t Layout::index_of(const std::string& name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].spec.name == name) return i;
  }
  throw InvalidArgument(concat("layout: no tensor is named '", name, "'"));
}

}  // namespace pride
