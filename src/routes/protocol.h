// Protocol: what a method sends in a step, as values. Costs are computed from it, and routes move
// its frames without knowing the method.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bucket.h"
#include "base/step.h"
#include "base/wire.h"
#include "codecs/frame.h"

namespace pride {

// How the frames of a part travel.
enum class Route {
  kSharded,       // two shots: to the rank that serves the shard, and its result to all
  kOneShot,       // to all ranks, each of which serves the whole
  kHierarchical,  // two shots, with partial results in between: nodes first, then between nodes
  kNative,        // no frames: the transport's own sum, which each rank serves
};

// The integers or floats that a native sum adds.
enum class Sum : std::uint8_t { kFloat32, kInt8, kInt16, kInt32 };

// One exchange about one bucket.
struct Part {
  Part() = default;
  Part(Part&&) noexcept = default;  // `shards` may point at `own`, which moves with its elements
  Part& operator=(Part&&) noexcept = default;

  int id = 0;  // the method's own number for it
  Route route = Route::kSharded;
  int bucket = 0;                 // its number in the frames
  FrameKind up, down;             // kNative: none; of kOneShot `down` is sent to nobody
  FrameKind partial;              // kHierarchical: what a node's ranks add up to
  Sum sum = Sum::kFloat32;        // kNative
  std::span<const Shard> shards;  // one for each rank, or (kOneShot, kNative) one that is the whole
  std::vector<Shard> own;         // where these are not the bucket's
};

// About the bucket's shards, or about the whole bucket.
Part sharded_part(const Bucket& bucket, FrameKind up, FrameKind down);
Part one_shot_part(const Bucket& bucket, FrameKind up, FrameKind down);
Part hierarchical_part(const Bucket& bucket, FrameKind up, FrameKind partial, FrameKind down);
Part native_part(const Bucket& bucket, Sum sum);

// About n values instead, which belong to no tensor: sharded in blocks of 64, or whole.
Part sharded_part(int bucket, std::size_t n, int voters, FrameKind up, FrameKind down);
Part one_shot_part(int bucket, std::size_t n, FrameKind up, FrameKind down);

// The bucket as one shard. The pieces of a tensor that its shards cut are one.
Shard whole_of(const Bucket& bucket);

// By which its gradients or votes travel: native if any part does, else that of the first part.
Route main_route(std::span<const Part> parts);
std::string_view route_name(Route route);  // "sharded", "one-shot", "hierarchical", "native"

// Messages, one after the other, that a part waits for.
int rounds_of(const Part& part);

// What holds for a whole step.
struct Protocol {
  std::size_t alignment = kAlignment;  // buckets and shards are cut at multiples of it; the same in
                                       // every step
  bool whole_gradient = false;      // prepare() comes when all gradients are complete, before any
                                    // bucket is encoded
  std::optional<Part> before = {};  // what prepare() exchanges
  bool mean_gradient = false;       // the mean of the ranks' gradients is known before apply()
  bool hierarchical = false;        // nodes are of use
  // The most that a rank sends beyond its parts, of so many buckets with so many coordinates, where
  // that depends on data.
  std::function<std::uint64_t(std::size_t n_coords, std::size_t n_buckets)> slack = {};
  bool exact = true;  // false: parts may be others than those that are sent
  bool bound = true;  // if not exact: never more than this
};

// Frames about one shard, of all that have voted, in their order. Of kNative: none.
struct Ballots {
  const FrameKind& kind;
  std::span<const Frame> frames;
  const std::string& where;  // begins the texts of errors about them
};

// What a server fills for a shard.
struct Reply {
  const FrameKind& kind;      // what is asked for: the part's result, or a partial one
  std::span<std::byte> head;  // header included, which is the route's
  std::span<std::byte> body;  // of kNative: the sum
  ByteBuffer& pending;        // the server's own state to be, until settle()
  std::optional<NonFinite> non_finite = {};
};

// The server's half of a method: ballots in, result out. It needs no model and no worker's state.
class Server {
 public:
  virtual ~Server() = default;
  virtual void serve(const Part& part, const Shard& shard, const Ballots& up, const Round& round,
                     Reply& reply) const = 0;
};

}  // namespace pride
