// SPDX-License-Identifier: Apache-2.0
#include "base/state_table.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "pride/error.h"

namespace pride {

const std::vector<float>& saved_values(const StateDict& in, const std::string& key,
                                       const TensorSlot& slot, StateTable::Values values) {
  const auto found = in.tensors.find(key);
  PRIDE_CHECK(found != in.tensors.end(), "load: the state has no tensor '", key, "'");
  const StateDict::Tensor& tensor = found->second;
  PRIDE_CHECK(tensor.shape == slot.spec.shape && tensor.values.size() == slot.n, "load: tensor '",
              key, "' has ", tensor.values.size(), " values, the layout has ", slot.n,
              ", or another shape");
  for (std::size_t i = 0; i < slot.n; ++i) {
    const float x = tensor.values[i];
    PRIDE_CHECK(std::isfinite(x), "load: tensor '", key, "' is not finite at index ", i);
    PRIDE_CHECK(x >= 0 || values != StateTable::Values::kSquares, "load: tensor '", key,
                "' is a mean of squares and negative at index ", i);
  }
  return tensor.values;
}

namespace {

const std::string& saved_text(const StateDict& in, const std::string& name) {
  const auto found = in.scalars.find("method." + name);
  PRIDE_CHECK(found != in.scalars.end(), "load: the state has no method.", name);
  return found->second;
}

const char* name_of(StateKind kind) {
  return kind == StateKind::kLocal ? "local" : kind == StateKind::kShared ? "shared" : "server";
}

}  // namespace

FlatBuffer& StateTable::add(const std::string& name, StateKind kind, Values values) {
  return entries_.emplace_back(Entry{prefix_ + name, kind, values}).buffer;
}

Stored StateTable::add(const std::string& name, StateKind kind, DType dtype) {
  return {entries_.emplace_back(Entry{prefix_ + name, kind, Values::kAny, dtype}).buffer, dtype};
}

void StateTable::add_text(std::string name, WriteText write, ReadText read) {
  texts_.push_back({std::move(name), std::move(write), std::move(read)});
}

void StateTable::allocate(std::size_t flat_size, Memory& memory) {
  flat_size_ = flat_size;
  memory_ = &memory;
  for (Entry& e : entries_) e.buffer = FlatBuffer(e.floats_of(flat_size), memory_of(e));
}

void StateTable::allocate_beside(const StateTable& first) {
  flat_size_ = first.flat_size_;
  memory_ = first.memory_;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    const bool shared = e.kind == StateKind::kShared;
    e.buffer = shared ? first.entries_[i].buffer.alias()
                      : FlatBuffer(e.floats_of(flat_size_), memory_of(e));
  }
}

std::uint64_t StateTable::floats() const noexcept {
  std::uint64_t n = 0;
  for (const Entry& e : entries_) n += e.buffer.size();
  return n;
}

std::size_t StateTable::bytes_per_coord() const noexcept {
  std::size_t bytes = 0;
  for (const Entry& e : entries_) bytes += e.kind == StateKind::kServer ? 0 : size_of(e.dtype);
  return bytes;
}

// Copies `from` to the beginning of `to`.
void StateTable::copy(Memory& of_from, const FlatBuffer& from, Memory& of_to, FlatBuffer& to) {
  std::vector<float> room;
  of_to.write(on_host(of_from, from.span(), room), to.span());
}

std::uint64_t StateTable::floats(StateKind kind) const noexcept {
  std::uint64_t n = 0;
  for (const Entry& e : entries_) n += e.kind == kind ? e.buffer.size() : 0;
  return n;
}

std::uint64_t StateTable::own_floats() const noexcept {
  return floats() - floats(StateKind::kShared);
}

void StateTable::take(const StateTable& other, std::size_t n_tensors) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& from = other.entries_[i];
    copy(other.memory_of(from), from.buffer, memory_of(entries_[i]), entries_[i].buffer);
  }
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    texts_[i].read(other.texts_[i].write(), n_tensors, true);
  }
}

std::vector<Floats> StateTable::buffers(StateKind kind) {
  std::vector<Floats> all;
  for (Entry& e : entries_) {
    if (e.kind == kind) all.push_back(e.of(0, flat_size_));
  }
  return all;
}

std::vector<Floats> StateTable::shared_buffers() {
  std::vector<Floats> all;
  for (Entry& e : entries_) {
    if (e.is_shared_buffer()) all.push_back(e.of(0, flat_size_));
  }
  return all;
}

std::vector<ConstFloats> StateTable::shared_buffers() const {
  std::vector<ConstFloats> all;
  for (const Entry& e : entries_) {
    if (e.is_shared_buffer()) all.push_back(e.of(0, flat_size_));
  }
  return all;
}

std::size_t StateTable::n_shared_buffers() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(entries_, &Entry::is_shared_buffer));
}

std::vector<StateBuffer> StateTable::buffers() {
  std::vector<StateBuffer> all;
  for (Entry& e : entries_) {
    all.push_back({e.name, e.kind, e.buffer.span(), e.buffer.memory(), e.dtype});
  }
  return all;
}

StateKind StateTable::kind_of(std::string_view key) const {
  if (key.starts_with(kMasterKey)) return StateKind::kShared;  // kept by PlacedParameters
  const auto named = [&](const Entry& e) { return key.starts_with(e.name + "/"); };
  const auto found = std::ranges::find_if(entries_, named);
  return found == entries_.end() ? StateKind::kLocal : found->kind;
}

bool StateTable::has(StateKind kind) const noexcept {
  return std::ranges::any_of(entries_, [=](const Entry& e) { return e.kind == kind; });
}

void StateTable::save(const Layout& layout, StateDict& out) const {
  for (const Entry& e : entries_) {
    out.scalars["kind." + e.name] = name_of(e.kind);
    for (const TensorSlot& slot : layout.tensors()) {
      StateDict::Tensor tensor{slot.spec.shape, std::vector<float>(slot.n)};
      memory_of(e).read(e.of(slot.offset, slot.n), tensor.values);
      out.tensors[concat(e.name, "/", slot.spec.name)] = std::move(tensor);
    }
  }
  for (const Text& t : texts_) out.scalars["method." + t.name] = t.write();
}

void StateTable::read(const Layout& layout, const StateDict& in, bool and_commit) {
  std::set<std::string> known;
  for (const Entry& e : entries_) {
    const auto kind = in.scalars.find("kind." + e.name);
    PRIDE_CHECK(kind == in.scalars.end() || kind->second == name_of(e.kind), "load: the state's '",
                e.name, "' is ", kind->second, ", here it is ", name_of(e.kind));
  }
  // everything is checked first: a refused state changes nothing
  for (const bool commit : {false, true}) {
    if (commit && !and_commit) return;
    for (Entry& e : entries_) {
      for (const TensorSlot& slot : layout.tensors()) {
        const std::string key = concat(e.name, "/", slot.spec.name);
        const auto& values = saved_values(in, key, slot, e.values);
        known.insert(key);
        if (commit) memory_of(e).write(values, e.of(slot.offset, slot.n));
      }
    }
    for (const Text& t : texts_) {
      t.read(saved_text(in, t.name), layout.tensors().size(), commit);
    }
    for (const auto& [key, tensor] : in.tensors) {
      PRIDE_CHECK(known.contains(key) || key.starts_with(kMasterKey), "load: the state holds '",
                  key, "', which this method does not have");
    }
  }
}

}  // namespace pride
