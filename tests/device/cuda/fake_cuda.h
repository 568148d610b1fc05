// Controls of the fake driver, fake_cuda.cpp: what it has, what is to fail, and when it works.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

// What exists now; `launches` and `grid` count and describe kernels.
struct FakeCudaState {
  std::size_t device_blocks, host_blocks;
  int streams, events, modules, contexts;  // contexts: how often primary ones are retained
  int waiting;                             // threads in cuEventSynchronize
  int launches;
  unsigned grid;  // of the last launch
  int priority;   // of the last stream
};

extern "C" {
void fake_cuda_state(FakeCudaState* state);
// The call of this name fails once with that result, after `calls` that do not.
void fake_cuda_fail(const char* call, int result, int calls);
// While held, streams start nothing.
void fake_cuda_hold(int held);
// Calls of this name so far.
int fake_cuda_calls(const char* call);
// The kernel of this name, "scale", leaves a wrong word at the first address of its first job; "":
// none does.
void fake_cuda_wrong(const char* kernel);
// The kernel of this name crashes when it runs: from then on nothing runs, and every call fails
// that needs a context. "": none does, and the context is a new one, without memory.
void fake_cuda_crash(const char* kernel);
// Words that a copy takes to the host get another last bit where `which` holds; null: none does.
void fake_cuda_change(bool (*which)(unsigned word));
// How many GPUs it has, and whether they allocate in the order of a stream.
void fake_cuda_machine(int gpus, int pools);
}
