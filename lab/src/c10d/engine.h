// Engine: carrier of the messages of c10d_comm, under its names in libtorch 1.13 and 2.x.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/version.h>

#include <chrono>
#include <memory>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include "pride/communicator.h"

namespace pride::process_group {

#if TORCH_VERSION_MAJOR >= 2
using Engine = ::c10d::Backend;
#else
using Engine = ::c10d::ProcessGroup;
#endif
using EnginePtr = c10::intrusive_ptr<Engine>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

// A world over `engine` (null: of one rank). Returns when all ranks have joined.
std::unique_ptr<Communicator> make_world(EnginePtr engine, std::chrono::milliseconds timeout);

}  // namespace pride::process_group
