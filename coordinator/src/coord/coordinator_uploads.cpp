// Chunks of uploads and downloads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>

#include "coord/coordinator_impl.h"
#include "pride/digest.h"
#include "pride/error.h"

namespace pride::coord {

using Impl = Coordinator::Impl;

namespace {

// The upload of this round and size; made if missing.
std::shared_ptr<Upload> fitting(std::shared_ptr<Upload>& slot, std::int64_t round,
                                std::uint64_t total) {
  if (slot == nullptr || slot->round() != round) slot = std::make_shared<Upload>(round, total);
  return slot;
}

}  // namespace

std::uint64_t Impl::ballot_size(std::int64_t round) {
  if (known_size.first != round) known_size = {round, serving->ballot_bytes(round)};
  return known_size.second;
}

Impl::Place Impl::ballot_place(int number, std::int64_t round, std::uint64_t total) {
  if (round > open.round()) {
    return {.refused =
                concat("a ballot of round ", round, ", but round ", open.round(), " is open")};
  }
  if (open.round() == round && open.of(number) != nullptr) return {};
  // ballots of the newest closed round are accepted, too, to measure how late their workers vote
  const bool newest = round >= open.round() - 1 && may_be_late(number, round);
  if ((round < open.round() || closing) && !newest) {
    count_late(number, round, now, false);
    return {.closed = true};
  }
  const std::uint64_t size = ballot_size(round);
  if (total != size) {
    return {.refused =
                concat("a ballot of ", total, " bytes; those of round ", round, " have ", size)};
  }
  reached(number, round);
  return {.upload = fitting(at(number).ballot, round, total)};
}

Impl::Place Impl::parameters_place(int number, std::int64_t before_round, std::uint64_t total) {
  const std::uint64_t size = 4 * std::uint64_t{serving->parameter_floats()};
  if (total != size) {
    return {.refused = concat("parameters of ", total, " bytes; this run's have ", size)};
  }
  if (keeping == before_round || journal.has_parameters(before_round)) return {.closed = true};
  const bool asked = ask && ask->number == number && ask->before_round == before_round;
  const bool first = before_round == 0 && open.round() == 0 && !journal.newest_parameters();
  if (!asked && !first) {
    return {.refused = concat("parameters before round ", before_round,
                              " were not requested from this worker")};
  }
  if (first) {
    const bool given_up = first_giver && Seconds(now - first_giver->second) >= options.dead_after;
    if (first_giver && first_giver->first != number && !given_up) return {.closed = true};
    first_giver = {number, now};
  }
  return {.upload = fitting(at(number).parameters, before_round, total)};
}

Impl::Place Impl::place_of(const Caller& caller, Kind kind, std::int64_t round,
                           std::uint64_t total) {
  if (!caller) return {.refused = caller.refused};
  if (kind == BALLOT) return ballot_place(caller.number, round, total);
  if (kind == PARAMETERS) return parameters_place(caller.number, round, total);
  return {.refused = "a coordinator accepts only ballots and parameters"};
}

MissingReply Coordinator::missing(const MissingRequest& request, const Peer& peer, Time now) {
  Impl::Work work(*impl_);
  MissingReply reply;
  const Impl::Caller caller = impl_->caller(request.session(), peer, now);
  const Impl::Place place =
      impl_->place_of(caller, request.kind(), request.round(), request.total());
  if (place.upload) {
    const auto chunks = place.upload->missing();
    reply.mutable_chunks()->Add(chunks.begin(), chunks.end());
  }
  reply.set_closed(place.closed);
  reply.set_refused(place.refused);
  return impl_->done("Missing", caller.number, peer, request, std::move(reply));
}

PutChunkReply Coordinator::put_chunk(const PutChunkRequest& request, const Peer& peer, Time now) {
  // without the lock: the hash takes longest
  const std::string bad =
      refuse_chunk(request.total(), request.chunk(), request.hash(), request.data());
  PutChunkReply reply;
  std::shared_ptr<Upload> upload;
  {
    Impl::Work work(*impl_);
    const Impl::Caller caller = impl_->caller(request.session(), peer, now);
    const Impl::Place place =
        caller && !bad.empty()
            ? Impl::Place{.refused = bad}
            : impl_->place_of(caller, request.kind(), request.round(), request.total());
    upload = place.upload;
    reply.set_closed(place.closed);
    reply.set_refused(place.refused);
    reply = impl_->done("PutChunk", caller.number, peer, request, std::move(reply));
  }
  try {
    if (upload) upload->put(request.chunk(), request.data());
  } catch (const std::bad_alloc&) {
    reply.set_refused("the coordinator has no memory for it");
  }
  return reply;
}

namespace {

// Fills the reply from the bytes of `read(begin, n)`.
void set_chunk(GetChunkReply& reply, std::uint64_t total, std::uint32_t chunk, const auto& read) {
  if (chunk >= chunks_of(total)) {
    reply.set_refused(concat("chunk ", chunk, " of ", chunks_of(total), " chunks"));
    return;
  }
  std::string data = read(chunk * kChunkBytes, chunk_bytes(total, chunk));
  reply.set_hash(hash_bytes(std::as_bytes(std::span(data))));
  reply.set_total(total);
  reply.set_data(std::move(data));
}

}  // namespace

GetChunkReply Coordinator::get_chunk(const GetChunkRequest& request, const Peer& peer, Time now) {
  GetChunkReply reply;
  Impl::Caller caller;
  std::shared_ptr<const std::vector<std::byte>> newest;
  std::optional<StoredBytes> stored;
  {
    Impl::Work work(*impl_);
    caller = impl_->caller(request.session(), peer, now);
    const bool is_newest = request.round() == impl_->last_round && impl_->last_record != nullptr;
    if (caller && request.kind() == RECORD && is_newest) newest = impl_->last_record;
  }
  try {
    if (caller && newest == nullptr && request.kind() == RECORD) {
      stored = impl_->journal.record(request.round());
    } else if (caller && request.kind() == PARAMETERS) {
      stored = impl_->journal.parameters(request.round());
    }
    if (newest) {
      set_chunk(reply, newest->size(), request.chunk(), [&](std::size_t begin, std::size_t n) {
        return std::string(reinterpret_cast<const char*>(newest->data()) + begin, n);
      });
    } else if (stored) {
      set_chunk(reply, stored->size(), request.chunk(),
                [&](std::uint64_t begin, std::uint64_t n) { return stored->read(begin, n); });
    } else {
      reply.set_refused(caller ? concat("there is no such ",
                                        request.kind() == RECORD ? "record" : "file of parameters",
                                        ": round ", request.round())
                               : caller.refused);
    }
  } catch (const DataError& error) {
    reply.set_refused(error.what());
  }
  Impl::Work work(*impl_);
  if (reply.refused().empty()) {
    // the worker applies the record and then works on the next round, which waits for it
    impl_->reached(caller.number, request.round() + (request.kind() == RECORD ? 1 : 0));
  }
  return impl_->done("GetChunk", caller.number, peer, request, std::move(reply));
}

}  // namespace pride::coord
