// SPDX-License-Identifier: Apache-2.0
#include "optimizer/replica.h"

#include <algorithm>
#include <vector>

#include "base/digest.h"
#include "pride/error.h"
#include "pride/optimizer.h"

namespace pride {
namespace {

using Blocks = std::vector<std::span<const float>>;

Blocks blocks_of(Method& method, std::span<const float> x) {
  Blocks blocks = {method.begin(x)};
  for (const auto buffer : method.state().memory()) blocks.push_back(buffer);
  return blocks;
}

// Padding is in none of the blocks' hashes.
std::uint64_t hash_of(const Layout& layout, const Blocks& blocks) {
  if (blocks.size() == 1) return param_hash(layout, blocks[0]);
  Digest digest;
  for (const auto block : blocks) digest.number(param_hash(layout, block));
  return digest.value();
}

}  // namespace

std::size_t replica_floats(const Method& method, const Layout& layout) {
  return layout.flat_size() * (1 + method.state().n_memory());
}

std::uint64_t replica_hash(const Layout& layout, std::span<const float> row) {
  const std::size_t n = layout.flat_size();
  PRIDE_CHECK(n > 0 && !row.empty() && row.size() % n == 0, "replica_hash: ", row.size(),
              " floats given, the layout has ", n);
  Blocks blocks;
  for (std::size_t at = 0; at < row.size(); at += n) blocks.push_back(row.subspan(at, n));
  return hash_of(layout, blocks);
}

std::uint64_t replica_hash(const Layout& layout, Method& method, std::span<const float> x) {
  return hash_of(layout, blocks_of(method, x));
}

FlatBuffer replica_of(const Layout& layout, Method& method, std::span<const float> x) {
  FlatBuffer row(replica_floats(method, layout));
  auto rest = row.span();
  for (const auto block : blocks_of(method, x)) {
    std::ranges::copy(block, rest.begin());
    rest = rest.subspan(block.size());
  }
  return row;
}

void take_replica(std::span<const float> row, Method& method, std::span<float> x) {
  std::ranges::copy(row.first(x.size()), x.begin());
  method.rebase(x);
  for (const auto buffer : method.state().memory()) {
    row = row.subspan(x.size());
    std::ranges::copy(row.first(x.size()), buffer.begin());
  }
}

}  // namespace pride
