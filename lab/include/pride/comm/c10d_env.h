// c10d_env: ranks are processes started by torchrun, or by any launcher that sets the same
// variables. This header needs no torch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "pride/communicator.h"

namespace pride {

// A communicator over Gloo between the processes that share MASTER_ADDR and MASTER_PORT; RANK and
// WORLD_SIZE give this process's rank and the size. Collective: the k-th call of each process makes
// the k-th world. GLOO_SOCKET_IFNAME names the interfaces to use; by default, the one that routes
// to MASTER_ADDR. Throws InvalidArgument if a variable is missing or invalid, CommError if not all
// ranks connect within `timeout`.
std::unique_ptr<Communicator> make_c10d_communicator_from_env(
    std::chrono::milliseconds timeout = std::chrono::seconds(300));

// The interface of those communicators: GLOO_SOCKET_IFNAME, or the address by default.
std::string c10d_interface();

// True if RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are all set, as torchrun does.
bool launched_by_torchrun() noexcept;

}  // namespace pride
