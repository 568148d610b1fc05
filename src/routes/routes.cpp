// The sharded, one-shot and native routes, over the communicator's all_to_all_v, all_gather_v and
// native_sum.
// SPDX-License-Identifier: Apache-2.0
#include "routes/routes.h"

#include <algorithm>

#include "routes/exchange.h"

namespace pride {

Exchange::Exchange(Communicator& comm, const Server& server, const Part& part,
                   const StepContext& ctx, const Nodes& nodes, Scratch& scratch, Wire& wire)
    : comm_(comm),
      server_(server),
      part_(part),
      ctx_(ctx),
      nodes_(nodes),
      scratch_(scratch),
      wire_(wire),
      me_(index(ctx.rank)),
      here_(nodes.known() ? nodes.node_of(ctx.rank) : 0) {
  for (auto* list : {&scratch.in, &scratch.in_body}) {
    list->resize(std::max(list->size(), index(ctx.voters)));
  }
  for (auto* list : {&scratch.partial_up, &scratch.partial_in}) {
    list->resize(std::max(list->size(), index(nodes.count())));
  }
  for (int k = 0; !ctx.weights.empty() && k < nodes.per_node(); ++k) {
    node_weights_.push_back(ctx.weight_of(neighbour(k)));
  }
}

// --- Frames. ------------------------------------------------------------------------------------

Frame Exchange::in(std::size_t i) const {
  if (i == me_) return up(part_.shards.size() == 1 ? 0 : me_);
  return {scratch_.in[i].span(), scratch_.in_body[i].span()};
}

std::vector<Frame> Exchange::all_in() const {
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < index(ctx_.voters); ++i) frames.push_back(in(i));
  return frames;
}

// Votes of the sender, or of its node in partial results.
int Exchange::weight_of(FrameRole role, int sender) const {
  return role == FrameRole::kPartial ? votes_of_node(ctx_, nodes_, nodes_.node_of(sender))
                                     : ctx_.weight_of(sender);
}

FrameHeader Exchange::header(FrameRole role, const Shard& shard, int sender) const {
  return {.codec = part_.frames(role).codec,
          .bucket = static_cast<std::uint32_t>(part_.bucket),
          .rank = static_cast<std::uint16_t>(sender),
          .weight = static_cast<std::uint16_t>(weight_of(role, sender)),
          .step = static_cast<std::uint64_t>(ctx_.step),
          .n_coords = shard.size(),
          .scalars = ctx_.scalars_digest,
          .non_finite = {}};
}

void Exchange::seal_as(FrameRole role, const Shard& shard, std::span<std::byte> head,
                       std::span<const std::byte> body) const {
  FrameHeader h = header(role, shard, ctx_.rank);
  h.non_finite = wire_.non_finite;
  seal(h, head, body);
}

void Exchange::open_as(FrameRole role, const Shard& shard, const Frame& frame, int from,
                       const std::string& where) {
  const auto seen = open(frame, header(role, shard, from), where);
  if (!seen) return;
  const std::size_t n_tensors = ctx_.unused.size();
  if (seen->tensor >= n_tensors || seen->rank >= ctx_.voters ||
      (seen->rank < 0 && seen->rank != NonFinite::kSum)) {
    throw CommError(concat(where, ": the frame from rank ", from, " reports tensor ", seen->tensor,
                           " on rank ", seen->rank, " as not finite; there are ", n_tensors,
                           " tensors and ", ctx_.voters, " ranks"));
  }
  if (!wire_.non_finite || *seen < *wire_.non_finite) wire_.non_finite = seen;
}

// Checks the payload of a frame whose header is valid.
void Exchange::check(FrameRole role, const Shard& shard, const Frame& frame, int from,
                     const std::string& where) const {
  ReceivedFrame received{frame, shard, from, where};
  if (role == FrameRole::kPartial) {
    received.most_votes = weight_of(role, from);
  } else {
    received.unused_here = wire_.unused;
    received.weight_here = ctx_.weight_of(ctx_.rank);
  }
  check_payload(part_.frames(role), received, role == FrameRole::kDown);
}

// Opens and checks the frames of all other ranks for the shard.
void Exchange::open_from_all(const Shard& shard) {
  const std::string text = where(FrameRole::kUp);
  for (int i = 0; i < ctx_.voters; ++i) {
    if (i != ctx_.rank) open_as(FrameRole::kUp, shard, in(index(i)), i, text);
  }
  for (int i = 0; i < ctx_.voters && !wire_.non_finite; ++i) {
    if (i == ctx_.rank) continue;
    check(FrameRole::kUp, shard, in(index(i)), i, text);
  }
}

void Exchange::serve(FrameRole from, std::span<const Frame> frames, FrameRole to,
                     const Shard& shard, std::span<std::byte> head, std::span<std::byte> body) {
  Reply reply{to, head, body, wire_.pending};
  const std::span<const int> weights = from == FrameRole::kPartial ? std::span<const int>{}
                                       : to == FrameRole::kPartial ? node_weights_
                                                                   : ctx_.weights;
  const auto cells = wire_.cells.span();
  server_.serve(part_, shard,
                {from,
                 frames,
                 where(from),
                 weights,
                 {reinterpret_cast<const std::uint64_t*>(cells.data()), cells.size() / 8}},
                ctx_, reply);
  wire_.non_finite = reply.non_finite;
}

// --- Sharded: to the server of each shard, and back. ---------------------------------------------

void Exchange::sharded() {
  const Shard& mine = part_.shards[me_];
  const int n = ctx_.voters;
  Messages m;
  for (int d = 1; d < n; ++d) {
    const int peer = (ctx_.rank + d) % n;
    const std::size_t j = index(peer);
    seal_as(FrameRole::kUp, part_.shards[j], wire_.up[j].span(), wire_.up_body[j]);
    scratch_.in[j].resize(wire_.up[me_].size());
    scratch_.in_body[j].resize(part_.up.body_bytes(mine));
    m.send.push_back({peer, wire_.up[j].span()});
    m.recv.push_back({peer, scratch_.in[j].span()});
    if (!wire_.up_body[j].empty()) m.send.push_back({peer, wire_.up_body[j]});
    if (scratch_.in_body[j].size() > 0) m.recv.push_back({peer, scratch_.in_body[j].span()});
  }
  trade(m);
  open_from_all(mine);
  if (wire_.non_finite) return;
  serve(FrameRole::kUp, all_in(), FrameRole::kDown, mine, wire_.down[me_].span(),
        wire_.down_body[me_]);
  if (n == 1) return;

  seal_as(FrameRole::kDown, mine, wire_.down[me_].span(), wire_.down_body[me_]);
  std::vector<std::span<const std::byte>> result = {wire_.down[me_].span()};
  if (!wire_.down_body[me_].empty()) result.push_back(wire_.down_body[me_]);
  std::vector<Incoming> results;
  for (int d = 1; d < n; ++d) {
    const int peer = (ctx_.rank + d) % n;
    results.push_back({peer, wire_.down[index(peer)].span()});
    if (wire_.down_body[index(peer)].empty()) continue;
    results.push_back({peer, wire_.down_body[index(peer)]});
  }
  comm_.all_gather_v(result, results);
  const std::string text = where(FrameRole::kDown);
  for (int j = 0; j < n; ++j) {
    if (j != ctx_.rank) open_as(FrameRole::kDown, part_.shards[index(j)], down(index(j)), j, text);
  }
  for (int j = 0; j < n && !wire_.non_finite; ++j) {
    if (j == ctx_.rank) continue;
    check(FrameRole::kDown, part_.shards[index(j)], down(index(j)), j, text);
  }
}

// --- One-shot: to all ranks; each serves the whole bucket. ---------------------------------------

void Exchange::one_shot() {
  const Shard& whole = part_.shards[0];
  const std::span<const std::byte> mine = wire_.up[0].span();
  if (ctx_.voters > 1) seal_as(FrameRole::kUp, whole, wire_.up[0].span());
  if (part_.up.sized) {
    std::vector<Incoming> frames;
    for (int d = 1; d < ctx_.voters; ++d) {
      const int peer = (ctx_.rank + d) % ctx_.voters;
      scratch_.in[index(peer)].resize(mine.size());
      scratch_.in_body[index(peer)].resize(0);
      frames.push_back({peer, scratch_.in[index(peer)].span()});
    }
    comm_.all_gather_v({&mine, 1}, frames);
  } else {
    gather_unsized();
  }
  open_from_all(whole);
  if (wire_.non_finite) return;
  serve(FrameRole::kUp, all_in(), FrameRole::kDown, whole, wire_.down[0].span(),
        wire_.down_body[0]);
}

// Headers first: they hold the lengths of the payloads.
void Exchange::gather_unsized() {
  const std::size_t most = part_.up.bytes(part_.shards[0]) - kHeaderBytes;
  const std::span<const std::byte> mine = wire_.up[0].span();
  const auto header = mine.first(kHeaderBytes), payload = mine.subspan(kHeaderBytes);
  std::vector<Incoming> headers, payloads;
  for (int d = 1; d < ctx_.voters; ++d) {
    const int peer = (ctx_.rank + d) % ctx_.voters;
    scratch_.in_body[index(peer)].resize(kHeaderBytes);
    headers.push_back({peer, scratch_.in_body[index(peer)].span()});
  }
  comm_.all_gather_v({&header, 1}, headers);
  for (const Incoming& h : headers) {
    ByteBuffer& in = scratch_.in[index(h.from)];
    in.resize(kHeaderBytes + claimed_payload(h.bytes, most, h.from, where(FrameRole::kUp)));
    std::ranges::copy(h.bytes, in.span().begin());
    payloads.push_back({h.from, in.span().subspan(kHeaderBytes)});
    scratch_.in_body[index(h.from)].resize(0);
  }
  comm_.all_gather_v({&payload, 1}, payloads);
}

// --- Native: the transport adds. ----------------------------------------------------------------

void Exchange::native() {
  const auto add = [&]<typename T>(T) {
    auto* values = reinterpret_cast<T*>(wire_.room.span().data());
    comm_.native_sum(std::span(values, wire_.room.size() / sizeof(T)));
  };
  switch (part_.sum) {
    case Sum::kFloat32:
      add(float{});
      break;
    case Sum::kInt8:
      add(std::int8_t{});
      break;
    case Sum::kInt16:
      add(std::int16_t{});
      break;
    case Sum::kInt32:
      add(std::int32_t{});
  }
  serve(FrameRole::kUp, {}, FrameRole::kDown, part_.shards[0], wire_.down[0].span(),
        wire_.room.span());
}

// --- All. ---------------------------------------------------------------------------------------

namespace {

struct Buffer {
  ByteBuffer* bytes;
  std::size_t size;
};

// With a device all of them lie in one block, so that one copy takes them.
void allocate(std::span<const Buffer> buffers, Memory& memory, ByteBuffer& block) {
  std::size_t all = 0;
  for (const Buffer& b : buffers) {
    if (memory.is_host()) b.bytes->resize(b.size, memory);
    all += align_up(b.size);
  }
  if (memory.is_host()) return;
  block.resize(all, memory);
  std::size_t at = 0;
  for (const Buffer& b : buffers) {
    b.bytes->point_at(block, at, b.size);
    at += align_up(b.size);
  }
}

}  // namespace

void size_frames(const Part& part, const StepContext& ctx, Wire& wire) {
  const std::size_t n = part.shards.size();
  wire.up.resize(n);
  wire.down.resize(n);
  wire.up_body.resize(n);
  wire.down_body.resize(n);
  wire.pending.resize(0);
  wire.non_finite.reset();
  std::vector<Buffer> up = {{&wire.fault, sizeof(std::uint32_t)}}, down;
  for (std::size_t j = 0; j < n; ++j) {
    const Shard& shard = part.shards[j];
    if (part.up.width == 0) wire.up_body[j] = {};
    if (part.down.width == 0) wire.down_body[j] = {};
    down.push_back({&wire.down[j], part.down.bytes ? part.down.bytes(shard) : 0});
    if (part.up.bytes && part.up.sized) up.push_back({&wire.up[j], part.up.bytes(shard)});
  }
  const std::byte* const before = wire.fault.span().data();
  allocate(up, *ctx.memory, wire.up_block);
  allocate(down, *ctx.memory, wire.down_block);
  wire.unused = ctx.unused;
  // A device may still read the frames of the step before; they are written after a wait, in
  // BucketStep::complete().
  if (ctx.memory->is_host() || wire.fault.span().data() != before) {
    wire.fault_word() = Wire::kNoTensor;
    mark_unused(part, wire);
  }
}

void mark_unused(const Part& part, Wire& wire) {
  if (!part.up.bytes || !part.up.sized || !part.up.unused_bits) return;
  for (std::size_t j = 0; j < part.shards.size(); ++j) {
    const Shard& shard = part.shards[j];
    const auto unused = unused_bits(wire.up[j].span().data(), shard);
    std::ranges::fill(unused, std::uint64_t{0});
    for (std::size_t k = 0; k < shard.pieces.size(); ++k) {
      if (wire.unused[shard.pieces[k].tensor] != 0) set_bit(unused, k);
    }
  }
}

void exchange(Communicator& comm, const Server& server, const Part& part, const StepContext& ctx,
              const Nodes& nodes, Scratch& scratch, Wire& wire) {
  const Communicator::Scope scope(
      comm, concat(part.up.bytes ? part.up.name : "sum", " exchange of bucket ", part.bucket));
  Exchange on_its_way(comm, server, part, ctx, nodes, scratch, wire);
  switch (part.route) {
    case Route::kSharded:
      return on_its_way.sharded();
    case Route::kOneShot:
      return on_its_way.one_shot();
    case Route::kHierarchical:
      return on_its_way.hierarchical();
    case Route::kNative:
      return on_its_way.native();
  }
}

std::size_t Scratch::capacity_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto* list : {&in, &in_body, &partial_up, &partial_in}) {
    for (const ByteBuffer& b : *list) bytes += b.capacity();
  }
  return bytes;
}

}  // namespace pride
