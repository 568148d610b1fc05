// Trainer: one worker's run, with its model, data and step loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "pride/communicator.h"
#include "pride/coordinator.h"
#include "pride/train/observer.h"
#include "pride/train/plan.h"

namespace pride::train {

// Trains on options.workers threads of this process (0: 4), each with its own model. Returns when
// all are done. Without `task`, options.task is trained. Ctrl-C is the caller's:
// catch_interrupts(). Throws as make_plan(), the optimizer, files and observers do.
TrainResult run(const TrainOptions& options, std::shared_ptr<const Task> task = nullptr,
                const Observers& observers = {});

// Trains as one worker of a coordinator's run, on this thread. `connect` opens the connection after
// the settings are checked and options.out is made; options.coordinator only names it in texts.
using Connect = std::function<std::shared_ptr<CoordinatorClient>()>;
TrainResult run_worker(const TrainOptions& options, const Connect& connect,
                       std::shared_ptr<const Task> task = nullptr, const Observers& observers = {});

// Before train_rank() among processes: gives the communicator options.timeout_s as its timeout,
// throws InvalidArgument on all ranks if settings or data differ, and determines the nodes.
// Collective.
void prepare(Communicator& comm, TrainPlan& plan);

// Trains as rank comm.rank(). Collective: every rank of `comm` calls it with the same plan; the
// observers of rank 0 are called. Throws as the optimizer, the communicator and files do.
TrainResult train_rank(Communicator& comm, const TrainPlan& plan, const Observers& observers = {});

// Pins torch, OpenMP and BLAS to one thread each: workers are the parallelism, and sums then have
// one order. run() and train_rank() call it. If your program makes tensors earlier, call it before
// the first one, and on each thread (torch has a setting per thread).
void pin_threads();

// After this call SIGINT, SIGTERM, SIGHUP and SIGPIPE stop the run after its step; that of a
// coordinator's worker also in a wait. A second SIGINT or SIGTERM ends the process, as the first
// signal does while data load. A signal that was ignored when the process started stays ignored.
void catch_interrupts();

}  // namespace pride::train
