// SPDX-License-Identifier: Apache-2.0
#include "routes/protocol.h"

#include <algorithm>
#include <cassert>

#include <utility>

namespace pride {
namespace {

Part part_of(Route route, int bucket, FrameKind up, FrameKind down) {
  Part part;
  part.route = route;
  part.bucket = bucket;
  part.up = std::move(up);
  part.down = std::move(down);
  return part;
}

void own(Part& part, std::vector<Shard> shards) {
  part.own = std::move(shards);
  part.shards = part.own;
}

}  // namespace

Part sharded_part(const Bucket& bucket, FrameKind up, FrameKind down) {
  Part part = part_of(Route::kSharded, bucket.index, std::move(up), std::move(down));
  part.shards = bucket.shards;
  return part;
}

Part hierarchical_part(const Bucket& bucket, FrameKind up, FrameKind partial, FrameKind down) {
  Part part = sharded_part(bucket, std::move(up), std::move(down));
  part.route = Route::kHierarchical;
  part.partial = std::move(partial);
  return part;
}

Part one_shot_part(const Bucket& bucket, FrameKind up, FrameKind down) {
  Part part = part_of(Route::kOneShot, bucket.index, std::move(up), std::move(down));
  own(part, {whole_of(bucket)});
  return part;
}

Part native_part(const Bucket& bucket, Sum sum) {
  Part part = part_of(Route::kNative, bucket.index, {}, {});
  part.sum = sum;
  own(part, {whole_of(bucket)});
  return part;
}

Part sharded_part(int bucket, std::size_t n, int voters, FrameKind up, FrameKind down) {
  Part part = part_of(Route::kSharded, bucket, std::move(up), std::move(down));
  std::vector<Shard> shards;
  const auto ranks = static_cast<std::size_t>(voters);
  for (std::size_t j = 0; j < ranks; ++j) {
    shards.push_back({n / 64 * j / ranks * 64, n / 64 * (j + 1) / ranks * 64, {}});
  }
  own(part, std::move(shards));
  return part;
}

Part one_shot_part(std::size_t n, FrameKind up, FrameKind down) {
  Part part = part_of(Route::kOneShot, 0, std::move(up), std::move(down));
  own(part, {Shard{0, n, {}}});
  return part;
}

Shard whole_of(const Bucket& bucket) {
  Shard whole{bucket.begin, bucket.end, {}};
  for (const Shard& shard : bucket.shards) {
    for (const Piece& piece : shard.pieces) {
      if (!whole.pieces.empty() && whole.pieces.back().tensor == piece.tensor) {
        whole.pieces.back().end = piece.end;
      } else {
        whole.pieces.push_back(piece);
        whole.pieces.back().first_word = (piece.begin - whole.begin) / 64;
      }
    }
  }
  return whole;
}

Route main_route(std::span<const Part> parts) {
  const bool native = std::ranges::find(parts, Route::kNative, &Part::route) != parts.end();
  return native ? Route::kNative : parts.front().route;
}

std::string_view route_name(Route route) {
  switch (route) {
    case Route::kSharded:
      return "sharded";
    case Route::kOneShot:
      return "one-shot";
    case Route::kHierarchical:
      return "hierarchical";
    case Route::kNative:
      return "native";
  }
  assert(false && "no such route");
  return {};
}

int votes_of_node(const SharedContext& shared, const Nodes& nodes, int node) {
  int votes = 0;
  for (int k = 0; k < nodes.per_node(); ++k) votes += shared.weight_of(nodes.rank_at(node, k));
  return votes;
}

int phases_of(const Part& part) {
  switch (part.route) {
    case Route::kOneShot:
      return part.up.sized ? 1 : 2;
    case Route::kHierarchical:
      return 4;
    case Route::kSharded:
    case Route::kNative:
      return 2;
  }
  assert(false && "no such route");
  return {};
}

}  // namespace pride
