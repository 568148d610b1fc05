// c10d_comm: a communicator over an existing process group of PyTorch's c10d.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pride/communicator.h"

namespace pride {

// Ranks are those of `group`, whose backend for the CPU must be Gloo. Collective; returns when all
// ranks have joined. The communicator holds `group`; no other sends or receives are allowed on it
// while the communicator or one of its duplicates and splits lives (collectives of c10d keep
// working). If a world fails in the middle of a message, the group's connections are closed.
// Gloo writes to closed connections: ignore SIGPIPE, as Python does, before making the group.
// Throws InvalidArgument for another backend: NCCL moves no bytes that are not on a GPU.
std::unique_ptr<Communicator> make_c10d_communicator(
    c10::intrusive_ptr<::c10d::ProcessGroup> group,
    std::chrono::milliseconds timeout = std::chrono::seconds(300));

}  // namespace pride
