// Protocol: the parts of a method's step, as values. Costs are computed from it, and routes move
// its frames independently of the method.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bucket.h"
#include "base/step.h"
#include "base/wire.h"
#include "codecs/frame.h"
#include "pride/nodes.h"

namespace pride {

// Route of the frames of a part.
enum class Route {
  kSharded,       // two shots: to the server of the shard, and its result to all
  kOneShot,       // to all ranks; each serves the whole bucket
  kHierarchical,  // a partial result per node first, then two shots between nodes
  kNative,        // no frames: the transport's own sum, served by every rank
};

// What a frame is: a rank's, for the server; a node's partial result, for the server; or the
// result.
enum class FrameRole : std::uint8_t { kUp, kPartial, kDown };

// The integers or floats that a native sum adds.
enum class Sum : std::uint8_t { kFloat32, kInt8, kInt16, kInt32 };

// One exchange for one bucket.
struct Part {
  Part() = default;
  Part(Part&&) noexcept = default;  // `shards` may point at `own`, which moves with its elements
  Part& operator=(Part&&) noexcept = default;

  int id = 0;  // the method's own number of the part
  Route route = Route::kSharded;
  int bucket = 0;                 // its number in the frames
  FrameKind up, down;             // kNative: none; `down` of kOneShot is not sent
  FrameKind partial;              // kHierarchical: sum over a node's ranks
  Sum sum = Sum::kFloat32;        // kNative
  std::span<const Shard> shards;  // one for each rank, or (kOneShot, kNative) one in all
  std::vector<Shard> own;         // shards other than the bucket's

  const FrameKind& frames(FrameRole role) const {
    return role == FrameRole::kUp ? up : role == FrameRole::kPartial ? partial : down;
  }
};

// For the bucket's shards, or for the whole bucket.
Part sharded_part(const Bucket& bucket, FrameKind up, FrameKind down);
Part one_shot_part(const Bucket& bucket, FrameKind up, FrameKind down);
Part hierarchical_part(const Bucket& bucket, FrameKind up, FrameKind partial, FrameKind down);
Part native_part(const Bucket& bucket, Sum sum);

// For n values that belong to no tensor: sharded in blocks of 64, or whole.
Part sharded_part(int bucket, std::size_t n, int voters, FrameKind up, FrameKind down);
Part one_shot_part(std::size_t n, FrameKind up, FrameKind down);

// The bucket as one shard. Pieces of one tensor in several shards are merged.
Shard whole_of(const Bucket& bucket);

// The route of gradients or votes: native if any part is native, else the first part's.
Route main_route(std::span<const Part> parts);
std::string_view route_name(Route route);  // "sharded", "one-shot", "hierarchical", "native"

// Votes of a node's ranks.
int votes_of_node(const SharedContext& shared, const Nodes& nodes, int node);

// Phases of a part, one after the other. In a phase each rank sends one message to each of others.
int phases_of(const Part& part);

// Properties of a whole step.
struct Protocol {
  std::size_t alignment = kAlignment;  // buckets and shards are cut at multiples of it; the same in
                                       // every step
  std::vector<std::size_t> cuts = {};  // beginnings of tensors at which buckets are cut as well;
                                       // the same in every step
  bool exchanges = true;               // false: nothing is sent in this step
  // Flat coordinates that are exchanged in this step. Buckets outside have no parts.
  std::size_t sent_begin = 0, sent_end = std::numeric_limits<std::size_t>::max();
  // Above 0: a step's results are used this many steps later, in LocalParameters::arrive() or
  // drop() instead of apply(). The same in every step.
  std::int64_t delay = 0;
  bool whole_gradient = false;  // encode_preliminary() comes when all gradients are complete,
                                // before any bucket is encoded
  std::optional<Part> preliminary = {};  // exchange of encode_preliminary()
  bool hierarchical = false;             // the hierarchical route may be used
  int most_votes = 0;                    // largest sum of vote weights; 0: ranks have equal weights
  // Upper bound of a rank's bytes beyond its parts, for this number of buckets and coordinates, if
  // they depend on data.
  std::function<std::uint64_t(std::size_t n_coords, std::size_t n_buckets)> slack = {};
  bool replays =
      false;  // results can be applied without a gradient: apply() reads only results,
              // and ranks have in common only parameters and the state's shared_buffers()
  // For workers that share one copy of the parameters and of shared state (virtual workers):
  bool same_apply = false;      // apply() changes only these: one call serves all workers
  bool keeps_gradient = false;  // apply() reads the gradient again, or frames lie in it
};

// All voters' frames for one shard, in the voters' order. For kNative: none.
struct VoterFrames {
  FrameRole role;  // kUp, or kPartial: one of each node
  std::span<const Frame> frames;
  const std::string& where;           // prefix of errors about them
  std::span<const int> weights = {};  // votes of each frame; empty: 1 each
  // The cells' bits of the shard's words, if the parameters are on a device (Wire::cells).
  std::span<const std::uint64_t> cells = {};

  // Whether the server has the parameters, or their cells.
  bool sees_parameters(const SharedContext& shared) const {
    return !cells.empty() || !shared.x.empty();
  }
};

// Output of a server for a shard.
struct Reply {
  FrameRole role;             // kDown, or kPartial
  std::span<std::byte> head;  // header included, which the route writes
  std::span<std::byte> body;  // of kNative: the sum
  ByteBuffer& pending;        // the server's next state, until apply() commits it
  std::optional<NonFinite> non_finite = {};
};

// The server's half of a method: the voters' frames in, the result out. Needs no model and no
// worker's state.
class Server {
 public:
  virtual ~Server() = default;
  virtual void serve(const Part& part, const Shard& shard, const VoterFrames& up,
                     const SharedContext& shared, Reply& reply) const = 0;
};

}  // namespace pride
