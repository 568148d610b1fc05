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

void DictWriter::text(std::string_view name, const std::string& value) {
  out_.scalars[concat("method.", name)] = value;
}

std::string DictReader::text(std::string_view name) {
  const auto found = in_.scalars.find(concat("method.", name));
  PRIDE_CHECK(found != in_.scalars.end(), "load: the state does not say its method.", name);
  return found->second;
}

void DictReader::buffer(std::string_view name, FlatBuffer& values) {
  for (const TensorSlot& slot : layout_.tensors()) read(name, slot, true, values);
}

void DictReader::squares(std::string_view name, FlatBuffer& values) {
  for (const TensorSlot& slot : layout_.tensors()) read(name, slot, false, values);
}

void DictReader::read(std::string_view name, const TensorSlot& slot, bool may_be_negative,
                      FlatBuffer& values) {
  const std::string key = concat(name, "/", slot.spec.name);
  const auto found = in_.tensors.find(key);
  PRIDE_CHECK(found != in_.tensors.end(), "load: the state has no tensor '", key, "'");
  const StateDict::Tensor& tensor = found->second;
  PRIDE_CHECK(tensor.shape == slot.spec.shape && tensor.values.size() == slot.n, "load: tensor '",
              key, "' has ", tensor.values.size(), " values, the layout has ", slot.n,
              ", or another shape");
  const std::size_t bad = kernels::first_non_finite(tensor.values);
  PRIDE_CHECK(bad == kernels::kAllFinite, "load: tensor '", key, "' is not finite at index ", bad);
  const auto negative =
      std::find_if(tensor.values.begin(), tensor.values.end(), [](float x) { return x < 0; });
  PRIDE_CHECK(may_be_negative || negative == tensor.values.end(), "load: tensor '", key,
              "' is a mean of squares and negative at index ", negative - tensor.values.begin());
  used_.insert(key);
  if (!commit_) return;
  std::copy(tensor.values.begin(), tensor.values.end(),
            values.span().subspan(slot.offset, slot.n).begin());
}

void DictReader::expect_all_used() const {
  for (const auto& [key, tensor] : in_.tensors) {
    PRIDE_CHECK(used_.contains(key), "load: the state holds '", key,
                "', which this method does not have");
  }
}

}  // namespace pride
