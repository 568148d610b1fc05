// The two phases that every sharded exchange is made of: frames to the owners of the shards, and
// the owners' results back to everybody.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codecs/frame.h"
#include "codecs/payload_check.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// Header of the frame that `sender` sends about `shard`.
FrameHeader header_of(Codec codec, const Bucket& bucket, const Shard& shard, int sender,
                      const StepContext& ctx);

// "sign frames of bucket 3", which begins the errors about them.
std::string phase_name(Codec codec, const Bucket& bucket);

// Frames that travel with floats behind them, each as a message of its own (dense exchanges).
struct Floats {
  std::vector<std::span<const std::byte>> send;  // by peer; empty for this rank
  std::vector<std::span<std::byte>> recv;        // by peer; empty for this rank
};

// open(), and the poison of the frame must be about a tensor and a rank that there are.
std::optional<Poison> open_frame(std::span<const std::byte> header, const Payload& payload,
                                 const FrameHeader& expected, const StepContext& ctx,
                                 const std::string& where);

// Up: seals wire.up[j] for every rank j, sends it there, and receives wire.in[i] from every other
// rank i: frames about this rank's shard, of the size of its own.
// Sets wire.poison to that of the lowest rank that reports one: the same on all ranks.
void send_up(Communicator& comm, Codec codec, const Bucket& bucket, const StepContext& ctx,
             const Floats& floats, Wire& wire);

// In one round: seals wire.up[rank], a frame about the whole bucket, sends it to every other rank,
// and receives wire.in[i] from every rank i: frames of the same size. Sets wire.poison as send_up.
void send_to_all(Communicator& comm, Codec codec, const Bucket& bucket, const Shard& whole,
                 const StepContext& ctx, Wire& wire);

// Down: seals wire.down[rank] and gathers the others'. REQUIRES: wire.down[j] has the size of the
// result frame of shard j. `result_poison`: what this owner found wrong with its result.
void send_down(Communicator& comm, Codec codec, const Bucket& bucket, const StepContext& ctx,
               const Floats& floats, std::optional<Poison> result_poison, Wire& wire);

// What a codec finds wrong with a payload: throws CommError.
using PayloadCheck = std::function<void(const ReceivedFrame&)>;

// Shows `check` what came from every other rank: the frames about this rank's shard (up), or about
// the whole bucket, the results (down). REQUIRES: no poison; the payload of a poisoned frame means
// nothing.
void check_up(Codec codec, const Bucket& bucket, const StepContext& ctx, const Wire& wire,
              const PayloadCheck& check);
void check_from_all(Codec codec, const Bucket& bucket, const Shard& whole, const StepContext& ctx,
                    const Wire& wire, const PayloadCheck& check);
void check_down(Codec codec, const Bucket& bucket, const StepContext& ctx, const Wire& wire,
                const PayloadCheck& check);

// The frame of rank i about this rank's shard: its own lies in wire.up.
std::span<const std::byte> frame_from(const Wire& wire, int i, int rank);

// A run of words of a shard to which the same ranks contribute.
struct Run {
  std::size_t first_word = 0;  // in the shard
  std::size_t n_words = 0;
  std::vector<int> ranks;  // ascending; empty: nobody
};

// Frames about one shard, headers included: one of each rank that is counted, in rank order.
using Frames = std::vector<std::span<const std::byte>>;

// Those of all ranks about this rank's shard.
Frames all_frames(const Wire& wire, const StepContext& ctx);

// Cuts a shard into runs by the absent bits of the frames about it. Usually one run: everybody, all
// words. Run::ranks are indices of `frames`.
std::vector<Run> runs_of(const Shard& shard, const Frames& frames);

// The same of all_frames(): Run::ranks are ranks.
std::vector<Run> runs_of(const Shard& shard, const Wire& wire, const StepContext& ctx);

}  // namespace pride::exchange
