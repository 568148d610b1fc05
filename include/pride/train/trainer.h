// Trainer: one worker's run: its model, its data, the step loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "pride/communicator.h"
#include "pride/coordinator.h"
#include "pride/train/observer.h"
#include "pride/train/plan.h"

namespace pride::train {

// Trains on options.workers threads of this process (0: 4), each with a model of its own, and
// returns when all are done. Without `task`, options.task is trained. Ctrl-C is the caller's:
// catch_interrupts(). Throws what make_plan(), the optimizer, files and observers throw.
TrainResult run(const TrainOptions& options, std::shared_ptr<const Task> task = nullptr,
                const Observers& observers = {});

// The same as one worker of a coordinator's run, on this thread: options.coordinator names it for
// people. `connect` is called once the settings are checked and options.out is there.
using Connect = std::function<std::shared_ptr<CoordinatorClient>()>;
TrainResult run_worker(const TrainOptions& options, const Connect& connect,
                       std::shared_ptr<const Task> task = nullptr, const Observers& observers = {});

// Before train_rank() among processes: sets options.timeout_s, throws InvalidArgument on all ranks
// where settings or data differ, and settles which ranks share a node. Collective.
void prepare(Communicator& comm, TrainPlan& plan);

// Trains as rank comm.rank(). Collective: every rank of `comm` calls it with the same plan; the
// observers of rank 0 are called. Throws what the optimizer, the communicator and files throw.
TrainResult train_rank(Communicator& comm, const TrainPlan& plan, const Observers& observers = {});

// Pins torch, OpenMP and BLAS to one thread each: workers are the parallelism, and sums then have
// one order. run() and train_rank() do so; call it before any tensor exists where that is not
// soon enough, and again on each thread (torch keeps a setting per thread).
void pin_threads();

// From now on SIGINT and SIGTERM ask the run to stop after its step; a second one ends the process,
// as does the first one while data load. One that was ignored when the process began stays ignored.
void catch_interrupts();

}  // namespace pride::train
