// Exchanges of signs in two levels: the ranks of a host add their signs up, hosts exchange counts,
// and every rank ends with the frames that the exchange in one level gives, bit for bit.
// SPDX-License-Identifier: Apache-2.0
//
// With L ranks on each of H hosts, the rank at place l of host h:
//   1. sends the L - 1 others of its host their signs of the shards that they and their colleagues
//      (the ranks at the same place of all hosts) serve: H frames of signs each;
//   2. counts the host's signs of the shards of its own colleagues, and sends each its counts;
//   3. adds up the H counts of its own shard, and sends its colleagues the result;
//   4. passes the H results of its place on to the L - 1 others of its host.
// Off the host go (H-1)/H * (c + r) bits a coordinate and host, with counts of c bits and results
// of r: nothing that grows with L but c.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "exchange/sign_vote.h"
#include "pride/bucket.h"
#include "pride/communicator.h"
#include "pride/cost.h"
#include "pride/hosts.h"
#include "pride/step.h"
#include "pride/wire.h"

namespace pride::exchange {

// sign_vote and sign_count, in two levels if hosts.two_levels(), else in one.
// REQUIRES: hosts.world() == comm.size() where hosts are known.
void sign_vote(Communicator& comm, const Bucket& bucket, const StepContext& ctx, const Hosts& hosts,
               Tie tie, Wire& wire);
void sign_count(Communicator& comm, const Bucket& bucket, const StepContext& ctx,
                const Hosts& hosts, CountForm form, Wire& wire);

// Exact bytes that `rank` sends, of which bytes_local on its host, where hosts are known.
Cost vote_cost(std::span<const Bucket> buckets, int rank, const Hosts& hosts, Tie tie);
Cost count_cost(std::span<const Bucket> buckets, int rank, const Hosts& hosts, CountForm form);

}  // namespace pride::exchange
