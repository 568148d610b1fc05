// The coordinator's client of a libpride without gRPC.
// SPDX-License-Identifier: Apache-2.0
#include "pride/coord/client.h"
#include "pride/error.h"

std::shared_ptr<pride::CoordinatorClient> pride::connect_coordinator(
    const CoordinatorAddress& address) {
  throw InvalidArgument(concat("coordinator ", address.host_port,
                               ": this libpride has no gRPC; use libpride_coord.so"));
}
