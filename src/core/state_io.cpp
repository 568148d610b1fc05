// State by parameter name.
// SPDX-License-Identifier: Apache-2.0
#include "core/state_io.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "pride/error.h"

namespace pride {

void DictWriter::buffer(std::string_view name, const FlatBuffer& values) {
  for (const TensorSlot& slot : layout_.tensors()) {
    const auto part = values.span().subspan(slot.offset, slot.n);
    out_.tensors[concat(name, "/", slot.spec.name)] = {slot.spec.shape, {part.begin(), part.end()}};
  }
}

void DictReader::buffer(std::string_view name, FlatBuffer& values) {
  for (const TensorSlot& slot : layout_.tensors()) {
    const std::string key = concat(name, "/", slot.spec.name);
    const auto found = in_.tensors.find(key);
    PRIDE_CHECK(found != in_.tensors.end(), "load: the state has no tensor '", key, "'");
    const StateDict::Tensor& tensor = found->second;
    PRIDE_CHECK(tensor.shape == slot.spec.shape && tensor.values.size() == slot.n, "load: tensor '",
                key, "' has ", tensor.values.size(), " values, the layout has ", slot.n,
                ", or another shape");
    const std::size_t bad = kernels::first_non_finite(tensor.values);
    PRIDE_CHECK(bad == kernels::kAllFinite, "load: tensor '", key, "' is not finite at index ",
                bad);
    used_.insert(key);
    if (commit_) {
      std::copy(tensor.values.begin(), tensor.values.end(),
                values.span().subspan(slot.offset, slot.n).begin());
    }
  }
}

void DictReader::expect_all_used() const {
  for (const auto& [key, tensor] : in_.tensors) {
    PRIDE_CHECK(used_.contains(key), "load: the state holds '", key,
                "', which this method does not have");
  }
}

}  // namespace pride
