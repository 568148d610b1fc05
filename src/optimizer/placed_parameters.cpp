// SPDX-License-Identifier: Apache-2.0
#include "optimizer/placed_parameters.h"

#include <algorithm>
#include <utility>

#include "base/state_table.h"
#include "pride/error.h"

namespace pride {
namespace {

std::string key_of(const TensorSlot& slot) { return concat(kMasterKey, slot.spec.name); }

}  // namespace

PlacedParameters::PlacedParameters(const Layout& layout, Space& space)
    : layout_(layout), space_(space), masters_(layout.tensors().size()) {}

PlacedParameters::PlacedParameters(const PlacedParameters& other, const Parameters& params,
                                   const char* call)
    : PlacedParameters(other.layout_, other.space_) {
  take(other);
  each_ = other.each_;
  place(params, call);
}

Floats PlacedParameters::Master::values() const {
  auto* const here = const_cast<float*>(memory.data());
  if (dtype == DType::kFloat16) return {here, caller.n};
  return {static_cast<std::uint16_t*>(caller.data), reinterpret_cast<std::uint16_t*>(here),
          caller.n};
}

void PlacedParameters::check(const Tensor& tensor, std::size_t index, const char* call) const {
  const TensorSlot& slot = layout_.tensors()[index];
  PRIDE_CHECK(tensor.n == slot.n, "optimizer: ", call, "(): ", tensor.n, " values given for '",
              slot.spec.name, "', which has ", slot.n);
  PRIDE_CHECK(tensor.n == 0 || tensor.data != nullptr, "optimizer: ", call, "(): '", slot.spec.name,
              "' has a null pointer");
  const DType before = masters_[index].dtype;
  const bool known = each_ || masters_[index].narrow();
  PRIDE_CHECK(!known || tensor.dtype == before, "optimizer: ", call, "(): '", slot.spec.name,
              "' is ", name_of(tensor.dtype), " now and was ", name_of(before), " before");
}

void PlacedParameters::place(const Parameters& params, const char* call) {
  if (params.is_flat()) {
    PRIDE_CHECK(params.flat().size() == layout_.flat_size(), "optimizer: ", call,
                "(): ", params.flat().size(), " parameters given, the layout has ",
                layout_.flat_size(), " with padding");
    PRIDE_CHECK(!each_, "optimizer: ", call,
                "(): one flat buffer given, before each tensor by itself");
    flat_ = params.flat();
    return;
  }
  const auto tensors = params.each();
  const std::size_t n = layout_.tensors().size();
  PRIDE_CHECK(tensors.size() == n, "optimizer: ", call, "(): ", tensors.size(),
              " parameters given, the layout has ", n, " tensors");
  for (std::size_t t = 0; t < n; ++t) check(tensors[t], t, call);
  places_.resize(n);
  for (std::size_t t = 0; t < n; ++t) {
    Master& master = masters_[t];
    master.dtype = tensors[t].dtype;
    master.caller = tensors[t];
    if (master.narrow()) place(master);
    places_[t] = {master.narrow() ? master.values()
                                  : Floats(static_cast<float*>(tensors[t].data), tensors[t].n),
                  layout_.tensors()[t].offset};
    master.loaded = {};
  }
  flat_ = {};
  each_ = true;
}

bool PlacedParameters::may_be_at(const Parameters& params) const {
  if (!each_ && flat_.size() == 0) return true;
  if (params.is_flat()) return !each_ && params.flat().data() == flat_.data;
  return each_ && std::ranges::equal(params.each(), masters_, [](const Tensor& t, const Master& m) {
           return t.data == m.caller.data;
         });
}

void PlacedParameters::place(Master& master) {
  const std::size_t n = master.caller.n;
  const bool halved = master.dtype == DType::kBFloat16;
  if (master.memory.size() == 0) master.memory = FlatBuffer(halved ? (n + 1) / 2 : n, space_);
  if (!master.loaded.empty()) take_loaded(master);
  if (!halved)
    space_.run(
        kernels::Adopt{{static_cast<const Float16*>(master.caller.data), master.values().size()},
                       master.values().span()});
}

// Adopts a loaded master if the caller's value is that master, rounded. Ties may be rounded either
// way, because an earlier version rounded them to even.
void PlacedParameters::take_loaded(Master& master) {
  const Floats values = master.values();
  if (!values.halved()) return space_.write(master.loaded, values);
  const std::size_t n = values.size();
  std::vector<std::uint16_t> given(n), upper(n), lower(n);
  std::vector<BFloat16> even(n);
  space_.read(static_cast<const std::uint16_t*>(values.upper), std::span(given));
  split(master.loaded, upper.data(), lower.data());
  to_bf16(master.loaded, even);
  for (std::size_t i = 0; i < n; ++i) {
    if (given[i] == upper[i] || given[i] == static_cast<std::uint16_t>(even[i])) continue;
    upper[i] = given[i];
    lower[i] = 0;
  }
  space_.write_bytes(std::as_bytes(std::span(upper)), values.upper);
  space_.write_bytes(std::as_bytes(std::span(lower)), values.lower);
}

void PlacedParameters::publish() const {
  for (const Master& m : masters_) {
    if (m.dtype != DType::kFloat16) continue;
    space_.run(kernels::Publish{m.values().span(),
                                {static_cast<Float16*>(m.caller.data), m.values().size()}});
  }
}

// --- State. --------------------------------------------------------------------------------------

void PlacedParameters::save(StateDict& out) const {
  for (std::size_t t = 0; t < masters_.size(); ++t) {
    const Master& m = masters_[t];
    // loaded, but the parameters were not placed yet
    const bool waits = !m.loaded.empty() && flat_.size() == 0;
    if (!m.narrow() && !waits) continue;
    const TensorSlot& slot = layout_.tensors()[t];
    StateDict::Tensor saved{slot.spec.shape, m.loaded};
    if (saved.values.size() < slot.n) {
      saved.values.resize(slot.n);
      space_.read(m.values(), saved.values);
    }
    out.tensors[key_of(slot)] = std::move(saved);
    out.scalars["kind.master"] = "shared";
  }
}

void PlacedParameters::check(const StateDict& in) const {
  std::size_t known = 0, found = 0;
  for (const TensorSlot& slot : layout_.tensors()) {
    if (!in.tensors.contains(key_of(slot))) continue;
    ++known;
    saved_values(in, key_of(slot), slot, StateTable::Values::kAny);
  }
  for (const auto& [key, tensor] : in.tensors) found += key.starts_with(kMasterKey) ? 1 : 0;
  PRIDE_CHECK(found == known, "load: the state has ", found,
              " masters ('master/...'), the layout has parameters for ", known, " of them");
}

void PlacedParameters::load(const StateDict& in) {
  for (std::size_t t = 0; t < masters_.size(); ++t) {
    const auto saved = in.tensors.find(key_of(layout_.tensors()[t]));
    masters_[t].loaded = saved == in.tensors.end() ? std::vector<float>() : saved->second.values;
  }
}

void PlacedParameters::take(const PlacedParameters& other) {
  std::vector<float> room;
  for (std::size_t t = 0; t < other.masters_.size(); ++t) {
    const Master& m = other.masters_[t];
    if (!m.narrow() && m.loaded.empty()) continue;
    masters_[t] = {m.dtype, m.caller, FlatBuffer(m.memory.size(), space_), m.loaded};
    space_.write(on_host(other.space_, m.memory.span(), room), masters_[t].memory.span());
  }
}

std::uint64_t PlacedParameters::bytes() const noexcept {
  std::uint64_t floats = 0;
  for (const Master& m : masters_) floats += m.memory.size();
  return sizeof(float) * floats;
}

}  // namespace pride
