// SPDX-License-Identifier: Apache-2.0
#include "optimizer/run_values.h"

#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "methods/local_parameters.h"
#include "pride/error.h"
#include "pride/replica.h"

namespace pride {
namespace {

using Blocks = std::vector<ConstView>;

// `room` keeps addresses.
Blocks blocks_of(const Method& method, View x, std::vector<ParameterPlace>& room) {
  Blocks blocks = {common_of(method, x, room)};
  Memory& memory = method.state().where();
  for (const auto buffer : method.state().memory()) {
    blocks.push_back({.flat = buffer, .memory = &memory});
  }
  return blocks;
}

// The blocks' hashes do not cover padding.
std::uint64_t hash_of(const Layout& layout, const Blocks& blocks) {
  if (blocks.size() == 1) return pride::hash_of(layout, blocks[0]);
  Digest digest;
  for (const ConstView block : blocks) digest.number(pride::hash_of(layout, block));
  return digest.value();
}

// Calls body(slot, the tensor's values on the host).
void for_tensors(const Layout& layout, ConstView x, auto&& body) {
  std::vector<float> room;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    body(slot, on_host(*x.memory, x.f32(t, slot.offset, slot.offset + slot.n), room));
  }
}

}  // namespace

ConstView common_of(const Method& method, View x, std::vector<ParameterPlace>& room) {
  return method.local() != nullptr ? method.local()->common(x, room) : ConstView(x);
}

std::size_t run_floats(const Method& method, const Layout& layout) {
  return layout.flat_size() * (1 + method.state().n_memory());
}

std::uint64_t hash_of(const Layout& layout, ConstView x) {
  Digest digest;
  for_tensors(layout, x, [&](const TensorSlot&, std::span<const float> values) {
    digest.bytes(std::as_bytes(values));
  });
  return digest.value();
}

std::uint64_t param_hash(const Layout& layout, std::span<const float> params) {
  PRIDE_CHECK(params.size() == layout.flat_size(), "param_hash: ", params.size(),
              " floats given, the layout has ", layout.flat_size());
  return hash_of(layout, ConstView{.flat = params});
}

std::uint64_t run_hash(const Layout& layout, std::span<const float> row) {
  const std::size_t n = layout.flat_size();
  PRIDE_CHECK(n > 0 && !row.empty() && row.size() % n == 0, "run_hash: ", row.size(),
              " floats given, the layout has ", n);
  Blocks blocks;
  for (std::size_t at = 0; at < row.size(); at += n) blocks.push_back({.flat = row.subspan(at, n)});
  return hash_of(layout, blocks);
}

std::uint64_t run_hash(const Layout& layout, const Method& method, View x) {
  std::vector<ParameterPlace> room;
  return hash_of(layout, blocks_of(method, x, room));
}

void scatter(const Layout& layout, std::span<const float> flat, View x) {
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSlot& slot = layout.tensors()[t];
    x.memory->write(flat.subspan(slot.offset, slot.n), x.f32(t, slot.offset, slot.offset + slot.n));
  }
}

void gather(const Layout& layout, ConstView x, std::span<float> flat) {
  for_tensors(layout, x, [&](const TensorSlot& slot, std::span<const float> values) {
    std::ranges::copy(values, flat.subspan(slot.offset).begin());
  });
}

FlatBuffer run_values(const Layout& layout, const Method& method, View x) {
  std::vector<ParameterPlace> room;
  FlatBuffer row(run_floats(method, layout));
  auto rest = row.span();
  for (const ConstView block : blocks_of(method, x, room)) {
    gather(layout, block, rest);
    rest = rest.subspan(layout.flat_size());
  }
  return row;
}

void take_run_values(const Layout& layout, std::span<const float> row, Method& method, View x) {
  scatter(layout, row, x);
  if (method.local() != nullptr) method.local()->rebase(x);
  for (const auto buffer : method.state().memory()) {
    row = row.subspan(layout.flat_size());
    method.state().where().write(row.first(buffer.size()), buffer);
  }
}

}  // namespace pride
