// SPDX-License-Identifier: Apache-2.0
#include "optimizer/placed_parameters.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "pride/error.h"

namespace pride {
namespace {

constexpr std::size_t kBlock = 4096;  // values at a time, in the L1 cache

void widen(std::span<const BFloat16> in, std::span<float> out) { to_float(in, out); }
void widen(std::span<const Float16> in, std::span<float> out) { to_float(in, out); }
void round(std::span<const float> in, std::span<BFloat16> out) { to_bf16(in, out); }
void round(std::span<const float> in, std::span<Float16> out) { to_float16(in, out); }

// master = the caller's value where it is not the rounded master
template <typename T>
void adopt(std::span<const T> values, std::span<float> master) {
  std::array<T, kBlock> block;
  for (std::size_t at = 0; at < values.size(); at += kBlock) {
    const std::size_t n = std::min(kBlock, values.size() - at);
    const auto given = values.subspan(at, n), rounded = std::span<const T>(block).first(n);
    round(master.subspan(at, n), std::span(block).first(n));
    if (std::memcmp(given.data(), rounded.data(), n * sizeof(T)) == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (given[i] != rounded[i]) widen(given.subspan(i, 1), master.subspan(at + i, 1));
    }
  }
}

// Calls body(values) with the tensor's own type.
void with_type(const Tensor& tensor, auto&& body) {
  if (tensor.dtype == DType::kBFloat16) {
    body(std::span(static_cast<BFloat16*>(tensor.data), tensor.n));
  } else {
    body(std::span(static_cast<Float16*>(tensor.data), tensor.n));
  }
}

}  // namespace

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
  for (const Narrow& p : narrow_) {
    with_type(p.caller, [&](auto values) {
      adopt(std::span<const typename decltype(values)::value_type>(values), {p.master, p.n});
    });
  }
}

void PlacedParameters::publish() const {
  for (const Narrow& p : narrow_) {
    with_type(p.caller, [&](auto values) { round({p.master, p.n}, values); });
  }
}

}  // namespace pride
