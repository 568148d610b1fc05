// SPDX-License-Identifier: Apache-2.0
#include "optimizer/placed_parameters.h"

#include "pride/error.h"

namespace pride {

void PlacedParameters::check(const Tensor& tensor, std::size_t index, const char* call) const {
  const TensorSlot& slot = layout_.tensors()[index];
  PRIDE_CHECK(tensor.n == slot.n, "optimizer: ", call, "(): ", tensor.n, " values given for '",
              slot.spec.name, "', which has ", slot.n);
  PRIDE_CHECK(tensor.n == 0 || tensor.data != nullptr, "optimizer: ", call, "(): '", slot.spec.name,
              "' has no memory");
  PRIDE_CHECK(dtypes_.empty() || tensor.dtype == dtypes_[index], "optimizer: ", call, "(): '",
              slot.spec.name, "' is ", name_of(tensor.dtype), " now and was ",
              name_of(dtypes_[index]), " before");
}

void PlacedParameters::place(const Parameters& params, const char* call) {
  if (params.is_flat()) {
    PRIDE_CHECK(params.flat().size() == layout_.flat_size(), "optimizer: ", call,
                "(): ", params.flat().size(), " parameters given, the layout has ",
                layout_.flat_size(), " with padding");
    PRIDE_CHECK(dtypes_.empty(), "optimizer: ", call,
                "(): one flat buffer given, each tensor by itself before");
    flat_ = params.flat().data();
    return;
  }
  const auto tensors = params.each();
  const std::size_t n = layout_.tensors().size();
  PRIDE_CHECK(tensors.size() == n, "optimizer: ", call, "(): ", tensors.size(),
              " parameters given, the layout has ", n, " tensors");
  for (std::size_t t = 0; t < n; ++t) check(tensors[t], t, call);
  std::vector<ParameterPlace> places(n);
  std::vector<Narrow> narrow;
  std::vector<DType> dtypes(n);
  for (std::size_t t = 0; t < n; ++t) {
    const TensorSlot& slot = layout_.tensors()[t];
    dtypes[t] = tensors[t].dtype;
    const bool wide = dtypes[t] == DType::kFloat32;
    float* const values = wide ? static_cast<float*>(tensors[t].data)
                               : state_.masters(t, slot.n).data() + slot.offset;
    places[t] = {values, slot.offset};
    if (!wide) narrow.push_back({slot.n, tensors[t], values});
  }
  flat_ = nullptr;
  places_ = std::move(places);
  narrow_ = std::move(narrow);
  dtypes_ = std::move(dtypes);
  for (const Narrow& p : narrow_) space_.adopt(p.caller.data, p.caller.dtype, {p.master, p.n});
}

void PlacedParameters::publish() const {
  for (const Narrow& p : narrow_) space_.publish({p.master, p.n}, p.caller.dtype, p.caller.data);
}

}  // namespace pride
