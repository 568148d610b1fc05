// How long a method's own arithmetic takes on this machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plan/predict.h"
#include "pride/communicator.h"
#include "pride/registry.h"

namespace pride::app {

// `method` may have options of its own: "lion:dense=bf16" (parse_method()).

// Times of a method's encode, vote and apply for d coordinates, its bytes and rounds on `world`
// ranks. Arithmetic is measured alone, on a part of d if d is large, on all ranks of `comm` at
// once, and is that of the slowest: ranks that share a machine get in each other's way here as in
// training. `world` may be any. Collective; about a second.
MethodModel measure_method(Communicator& comm, const std::string& method, int world, double d,
                           std::size_t bucket_coords);

// Bytes that the rank with most sends per step, long after the first, for d coordinates on `world`
// ranks. Of ten million coordinates they are counted, of more extrapolated: frames by the bucket,
// the rest by the coordinate.
double bytes_of(const std::string& method, int world, double d, std::size_t bucket_coords);

// The route of buckets of that size, and its rounds; of buckets above ten million coordinates that
// of ten million.
BucketRoute route_of(const std::string& method, int world, std::size_t bucket_coords);

// Both: what a step sends in buckets of that size.
Sent sent_in(const std::string& method, int world, double d, std::size_t bucket_coords);

// What a rank could send while it waits for a round of messages.
std::uint64_t round_bytes(const NetworkModel& network, int world);

// The method with its option round_bytes set to that, if it has one that the text does not set.
std::string on_network(const std::string& method, const NetworkModel& network, int world);

}  // namespace pride::app
